"""Steps in which a number chooses between two graphs: `torch.cond`."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.capture.cond_branches import CondBranches  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import UnsupportedError  # noqa: E402

aten = torch.ops.aten


class Chooses(nn.Module):
    """A branch of one op, or one that takes more memory, between layers."""

    def __init__(self, wide=None, narrow=torch.sin):
        super().__init__()
        self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 8)
        self.wide = wide or (lambda h: torch.cat([h, h.cos(), h.sin()], 1).tanh()[:, 64:128])
        self.narrow = narrow

    def forward(self, x):
        h = torch.tanh(self.first(x))
        h = torch.cond(x.sum() > 0, lambda h: self.wide(h) + 1, lambda h: self.narrow(h) + 1, (h,))
        return self.last(torch.tanh(h))


def loss(y):
    return y.square().mean()


def gradients(step, model, x):
    model.zero_grad()
    step(x).backward()
    return [p.grad for p in model.parameters()]


@pytest.mark.slow
def test_a_step_is_planned_as_a_whole_and_takes_the_branch_that_each_input_chooses():
    torch.manual_seed(0)
    model, x = Chooses(), torch.rand(256, 32)
    module = schedsim.rematerialize(model, (x,), "100%", loss, effort=0.1)
    assert module.level == "op"
    plan = module.plan
    resident = storage_bytes([list(model.parameters()), x])
    for given in (x, -x):
        expected = gradients(lambda one: loss(model(one)), model, given)
        assert all(map(torch.equal, gradients(module, model, given), expected))
        model.zero_grad()
        [reading] = AllocatorMeter().read(lambda: module(given).backward())  # noqa: B023
        assert resident + reading.peak_bytes <= module.plan.peak_bytes
        assert module.plan is plan
    assert module.run_counts["cond"] >= 1


class ChoosesLayers(nn.Module):
    """Branches with parameters, which no operand gives."""

    def __init__(self):
        super().__init__()
        self.first, self.wide, self.narrow = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        return torch.cond(x.sum() > 0, self.wide, lambda h: self.narrow(h).tanh(), (self.first(x),))


@pytest.mark.slow
def test_branches_may_read_parameters():
    torch.manual_seed(0)
    model, x = ChoosesLayers(), torch.rand(16, 8)
    module = schedsim.rematerialize(model, (x,), "100%", loss, effort=0.1)
    assert module.level == "op"
    for given in (x, -x):
        expected = gradients(lambda one: loss(model(one)), model, given)
        found = gradients(module, model, given)
        for one, other in zip(found, expected, strict=True):
            # The branch that was not taken has no gradient, or zeros.
            assert torch.equal(one, other) if other is not None else one is None or not one.any()


@pytest.mark.slow
def test_the_backend_of_torch_compile_plans_it_too():
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, x = Chooses(), torch.rand(256, 32)
    compiled = torch.compile(model, backend="schedsim", options={"budget": "100%", "effort": 0.1})
    for given in (x, -x, x):
        expected = gradients(lambda one: loss(model(one)), model, given)
        assert all(
            map(torch.equal, gradients(lambda one: loss(compiled(one)), model, given), expected)
        )


@pytest.mark.slow
def test_branches_that_draw_are_refused_by_name():
    with pytest.raises(UnsupportedError, match=r"branch of torch.cond draws .*aten.rand_like"):
        schedsim.rematerialize(
            Chooses(narrow=lambda h: h + torch.rand_like(h)), (torch.rand(4, 32),), "100%", loss
        )


def test_names_follow_from_the_ops():
    """Measurements are kept by name."""

    def graph(op):
        made = torch.fx.Graph()
        made.output((made.call_function(op, (made.placeholder("x"),)),))
        return torch.fx.GraphModule(nn.Module(), made)

    one, same = (CondBranches(graph(aten.sin.default), graph(aten.cos.default)) for _ in range(2))
    other = CondBranches(graph(aten.cos.default), graph(aten.sin.default))
    assert one.__name__ == same.__name__ != other.__name__
    x = torch.rand(3)
    assert torch.equal(one(torch.tensor(True), x)[0], x.sin())
    assert torch.equal(one(torch.tensor(False), x)[0], x.cos())
