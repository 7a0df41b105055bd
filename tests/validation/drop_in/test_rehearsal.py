"""The first step of a model that gets its budget leaves no trace."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from in_place_models import Net  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.drop_in.local_session import LocalSession  # noqa: E402
from schedsim.validation.drop_in.rehearsal import _left_as_it_is  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning  # noqa: E402
from schedsim.validation.torch_private.module_tables import as_itself  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import InfeasibleBudgetError, UnsupportedError  # noqa: E402


def test_what_fails_by_schedules_alone_is_refused(batch, monkeypatch):
    """One line; a model that fails by itself fails as it does."""
    from schedsim.validation.drop_in.parts.traced_part import TracedPart

    def fails(self, arguments):
        raise RuntimeError("no such view")

    monkeypatch.setattr(TracedPart, "forward", fails)
    model = Net(depth=2)
    with pytest.raises(UnsupportedError, match="by its schedules fails: RuntimeError: no such"):
        schedsim.rematerialize(model, batch[0], "80%", in_place=True)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        schedsim.rematerialize(model, torch.randn(4, 7), "80%", in_place=True)


class Counting:
    """What a plain object counts: the first step makes an attribute of the class's default."""

    steps = 0


STEPS = 0


class LeavesTraces(Net):
    """A forward that changes Python, draws from generators of its own and sets parameters once."""

    def __init__(self):
        super().__init__(depth=2)
        self.count = Counting()
        self.numpy = np.random.default_rng(3)
        self.own = {"noise": [torch.Generator().manual_seed(4)]}
        self.shift, self.is_set = nn.Parameter(torch.zeros(32)), False

    def noise(self, x):
        """From generators that Dynamo does not trace."""
        return torch.randn(x.shape, generator=self.own["noise"][0]) * self.numpy.random()

    def forward(self, x):
        global STEPS
        STEPS += 1
        self.count.steps += 1
        x = super().forward(x)["hidden"] * self.count.steps
        if not self.is_set:
            self.is_set = True
            with torch.no_grad():
                self.shift.copy_(-x.mean(0))
        return (x + self.shift) * STEPS

    def left(self):
        """What it has left behind."""
        drawn = self.numpy.bit_generator.state["state"]
        state = self.own["noise"][0].get_state().tolist()
        return [STEPS, dict(vars(self.count)), self.is_set, drawn, state, self.shift.tolist()]


@pytest.mark.slow
def test_a_forward_that_leaves_traces_is_the_plain_one(batch):
    """Nothing of the steps that plan and compare is left; no warning says so, so bits must."""
    global STEPS
    x, other = batch
    found = []
    for budget in (None, "1MiB"):
        STEPS = 0
        torch.manual_seed(0)
        model = LeavesTraces()
        if budget:
            before = model.left()
            schedsim.rematerialize(model, other, budget, in_place=True)
            assert model.left() == before
        torch.manual_seed(2)
        outputs = [model(x) for _ in range(2)]
        sum(y.square().mean() for y in outputs).backward()
        found.append([*outputs, *(p.grad for p in model.parameters())])
    assert all(map(torch.equal, *found))


class FakeQuantized(nn.Linear):
    """Quantises its weight by channel as torch.ao does: the op enlarges empty buffers.

    Dynamo does not trace torch's own module either.
    """

    def __init__(self, width):
        super().__init__(width, width)
        self.register_buffer("on", torch.ones(1, dtype=torch.long))
        self.register_buffer("least", torch.empty(0))
        self.register_buffer("most", torch.empty(0))
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("zero", torch.zeros(1, dtype=torch.int32))

    @torch.compiler.disable
    def quantized(self):
        state = (self.on, self.on, self.least, self.most, self.scale, self.zero)
        return torch.fused_moving_avg_obs_fake_quant(
            self.weight, *state, 0.5, -128, 127, 0, per_row_fake_quant=True
        )

    def forward(self, x):
        return nn.functional.linear(x, self.quantized(), self.bias)


@pytest.mark.slow
def test_what_observers_have_seen_is_not_left_by_planning(batch):
    """Their ranges are averages over steps: a step too many would be another training."""
    found = []
    for budget in (None, "2MiB"):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), FakeQuantized(32))
        if budget:
            before = {name: buffer.tolist() for name, buffer in model.named_buffers()}
            schedsim.rematerialize(model, batch[0], budget, in_place=True, effort=0.1)
            assert {name: buffer.tolist() for name, buffer in model.named_buffers()} == before
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        for _ in range(3):
            nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
            optimizer.step()
        found.append([*model.state_dict().values(), *(p.grad for p in model.parameters())])
    assert all(map(torch.equal, *found))


def test_generators_are_put_back_wherever_they_are(batch):
    """Attributes, items of containers, NumPy's; and what the forward writes in place."""

    class Noisy(LeavesTraces):
        def forward(self, x):
            return super().forward(x) + self.noise(x)

    model = Noisy()
    before = model.left()
    with as_itself(model), _left_as_it_is(model, (batch[0],), {}, True):
        model(batch[0])
        changed = model.left()
    assert model.left() == before
    assert not any(one == two for one, two in zip(before, changed, strict=True))


def test_an_iterator_is_not_used_up(batch):
    """Planning would take its items: refused before it does."""

    class Reads(Net):
        def __init__(self):
            super().__init__(depth=2)
            self.factors = iter([1.0, 2.0, 3.0])

        def forward(self, x):
            return super().forward(x)["hidden"] * next(self.factors)

    model = Reads()
    with pytest.raises(UnsupportedError, match=r"iterator, model\.factors"):
        schedsim.rematerialize(model, batch[0], "90%", in_place=True)
    assert next(model.factors) == 1.0


def test_a_refusal_in_the_backward_of_a_comparison_is_one(batch, monkeypatch):
    """It names a budget; it read as a step that is not the plain one."""
    plan = SimpleNamespace(budget_bytes=1, min_feasible_bytes=1000)
    refused = InfeasibleBudgetError("a step of 2 graphs does not fit", plan=plan)

    def refuses(self, part, header, given):
        raise refused

    monkeypatch.setattr(LocalSession, "backward_begins", refuses)
    with pytest.raises(InfeasibleBudgetError, match="2 graphs") as found:
        schedsim.rematerialize(Net(depth=2), batch[0], "80%", in_place=True)
    assert found.value is refused


class Wide(nn.Module):
    """A model of which a hook holds what its layers make, and with it what their backward needs."""

    def __init__(self, held):
        super().__init__()
        self.body = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4)))
        self.head = nn.Linear(32, 4)
        self.body.register_forward_hook(lambda _module, _inputs, output: held.update(it=output))

    def forward(self, x):
        return self.head(self.body(x)).square()


@pytest.mark.slow
def test_what_a_hook_holds_of_the_first_forward_is_no_forward_of_the_compared_step():
    """Both were taken to wait for their backwards, beside each other, and refused."""
    model = Wide({})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlainStepWarning)  # on what the call itself takes
        schedsim.rematerialize(model, torch.randn(512, 32), 320_000, in_place=True, effort=0.1)
    assert "to the bit" in session_in(model).check_note


@pytest.mark.slow
def test_a_weight_that_each_forward_makes_anew_holds_no_forward(monkeypatch):
    """Its graph kept the first forward's tensors beside a second one: 1.17 of the budget."""
    from schedsim.validation.drop_in import rehearsal

    monkeypatch.setattr(rehearsal, "_step", lambda *_: pytest.fail("a second forward"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layers = [nn.utils.weight_norm(nn.Linear(16, 16)) for _ in range(3)]
    model, x = nn.Sequential(*layers), torch.randn(64, 16)
    weight = layers[0].weight
    schedsim.rematerialize(model, (x,), "1MB", in_place=True, effort=0.1)
    assert layers[0].weight is weight
