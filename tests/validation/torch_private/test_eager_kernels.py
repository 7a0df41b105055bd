"""Interpolation and dropout of a captured step are those of the plain one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.torch_private.eager_kernels import (  # noqa: E402
    _taken_apart,
    eager_kernels,
)
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import schedsim  # noqa: E402

MODES = {
    1: ("nearest", "nearest-exact", "linear"),
    2: ("nearest", "nearest-exact", "bilinear", "bicubic"),
    3: ("nearest", "nearest-exact", "trilinear"),
}


class Enlarges(nn.Module):
    """Every way of interpolation, by a size and by a factor, after a product each."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5))

    def forward(self, x):
        found = []
        for dims, modes in MODES.items():
            given = (x[:, : 5**dims] * self.weight.repeat(5 ** (dims - 1))).sin()
            for mode in modes:
                image = given.reshape(len(x), 1, *[5] * dims)
                found.append(F.interpolate(image, size=[7] * dims, mode=mode).square().sum())
                found.append(F.interpolate(image, scale_factor=2.0, mode=mode).cos().sum())
        return torch.stack(found)


def test_every_way_has_its_own_kernel_and_the_bits_of_the_plain_step():
    torch.manual_seed(0)
    model, x = Enlarges(), torch.randn(3, 125)
    plain = model(x).mean()
    plain.backward()
    expected, model.weight.grad = model.weight.grad, None
    planned = schedsim.rematerialize(
        model, (x,), "100%", lambda out: out.mean(), level="op", effort=0.1
    )
    assert torch.equal(planned(x), plain)
    model.weight.grad = None
    planned(x).backward()
    assert torch.equal(model.weight.grad, expected)


class Shrinks(nn.Module):
    """Small numbers are none, and losses ask for a margin."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(20))

    def forward(self, x):
        small = F.hardshrink(x * self.weight) + F.softshrink(x + self.weight)
        one, several = torch.arange(len(x)) % 20, torch.arange(20).expand(len(x), -1) - 1
        several = several.flip(1).contiguous()
        of_one = F.multi_margin_loss(small, one, reduction="none")
        of_several = F.multilabel_margin_loss(small, several, reduction="none")
        return of_one + of_several


@pytest.mark.parametrize("way", ["op", pytest.param("backend", marks=pytest.mark.slow)])
def test_shrinking_and_margins_are_their_kernels(way):
    """To the bit, and without the masks that the rules would save."""
    torch.manual_seed(0)
    model, x = Shrinks(), torch.randn(64, 20)
    plain = model(x).mean()
    plain.backward()
    expected, model.weight.grad = model.weight.grad, None
    if way == "op":
        graph = capture(model, (x,), lambda out: out.mean()).graph
        assert not [name for name in graph.op_names if "where" in name]
        planned = schedsim.rematerialize(
            model, (x,), "100%", lambda out: out.mean(), level="op", effort=0.1
        )
        loss = planned(x)
    else:
        torch._dynamo.reset()
        loss = torch.compile(model, backend="schedsim", options={"budget": "1GB"})(x).mean()
    loss.backward()
    assert torch.equal(loss, plain)
    assert torch.equal(model.weight.grad, expected)


def test_the_rules_are_there_again_afterwards():
    """And where a size is open they stay: the kernels' rules would fix it."""
    before = [(op, dict(op.py_kernels)) for op in _taken_apart()]
    assert len(before) >= 20
    with eager_kernels([torch.ones(2)]):
        assert not any(set(op.py_kernels) & _places() for op, _ in before)
    assert all(op.py_kernels == rules for op, rules in before)
    mode = torch._subclasses.fake_tensor.FakeTensorMode(shape_env=_environment())
    with eager_kernels([mode.from_tensor(torch.ones(4, 6))]):
        assert all(op.py_kernels == rules for op, rules in before)


SAME_OPS = {
    *("broadcast_tensors", "tensor_split", "unsafe_chunk", "to_dense"),  # views, or one op
    *("empty", "one_hot", "pad_sequence"),  # nothing is added up
    *("stft", "istft"),  # the ops of the kernel, as the tests of the models with them have it
    *("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"),  # one op each
    "matmul",  # `folded_products`
    *("lstm", "gru", "rnn_relu", "rnn_tanh"),  # whole layers are one op: `recurrent`
}
"""Ops with a rule in torch's Python dispatcher that is no other than the plain step's kernel."""


def test_every_rule_by_which_torch_traces_has_been_looked_at():
    """A version of torch that takes another op apart may train something else, unsaid."""
    found = set()
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        op = getattr(getattr(torch.ops, space), packet, None) if space == "aten" else None
        op = getattr(op, overload or "default", None)
        if op is not None and _places() & set(op.py_kernels):
            found.add(packet)
    replaced = {op.overloadpacket.__name__ for op in _taken_apart()} | {"dropout"}
    assert len(found) >= 30
    assert found - replaced <= SAME_OPS


class DropsNothing(nn.Module):
    """What dropout hands on is its input: what is written into the one is in the other."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.none, self.some = nn.Dropout(0.0), nn.Dropout(0.5)

    def forward(self, x):
        hidden = self.first(x)
        same = self.none(hidden)
        same.mul_(2)
        other = self.some(self.last(hidden))
        return other + hidden


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("level", ["op", "in place", "backend"])
def test_dropout_that_drops_nothing_is_its_input(training, level):
    """No copy is made, and a write into the result is a write into the input."""
    torch.manual_seed(0)
    model, x = DropsNothing(), torch.randn(16, 8)
    model.none.train(training)
    model.some.p = 0.0 if training else 0.5
    model.some.train(training)
    plain = model(x).square().mean()
    plain.backward()
    expected = [it.grad.clone() for it in model.parameters()]
    model.zero_grad()
    if level == "op":
        graph = capture(model, (x,), lambda out: out.square().mean()).graph
        assert not [op.name for op in graph.ops if "clone" in op.name]
        planned = schedsim.rematerialize(
            model, (x,), "100%", lambda out: out.square().mean(), level="op", effort=0.1
        )
        loss = planned(x)
    elif level == "backend":
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="schedsim", options={"budget": "1GB"})
        loss = compiled(x).square().mean()
    else:
        schedsim.rematerialize(model, (x,), "100%", in_place=True, effort=0.1)
        loss = model(x).square().mean()
    loss.backward()
    assert torch.equal(loss, plain)
    for it, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.equal(it.grad, gradient)


class Rare(nn.Module):
    """Dropout of complex numbers, of everything (an infinity becomes a NaN), and of nothing."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.first = kind, nn.Linear(8, 8)

    def forward(self, x):
        hidden = self.first(x)
        if self.kind == "complex":
            return F.dropout(torch.complex(hidden, hidden.cos()), 0.3).abs()
        if self.kind == "everything":
            return F.dropout(hidden.exp(), 1.0)
        none = hidden[:0]
        F.dropout(none, 0.5).add_(1)
        return hidden + none.sum()


@pytest.mark.parametrize("level", ["in place", "backend"])
@pytest.mark.parametrize("kind", ["complex", "everything", "empty"])
def test_rare_dropout_is_the_plain_steps(kind, level):
    """The same draws from the generator, and the same bits."""
    torch.manual_seed(0)
    model, x = Rare(kind), torch.randn(16, 8)
    if kind == "everything":
        x[0] = 1e4
    torch.manual_seed(1)
    try:
        plain = model(x).sum(1)
    except NotImplementedError:
        pytest.skip("this version of torch drops no complex numbers on a CPU")
    plain[1:].sum().backward()
    after = torch.get_rng_state()
    expected = [it.grad.clone() for it in model.parameters()]
    model.zero_grad()
    if level == "backend":
        torch._dynamo.reset()
        step = torch.compile(model, backend="schedsim", options={"budget": "1GB"})
    else:
        step = schedsim.rematerialize(model, (x,), "100%", in_place=True, effort=0.1)
    torch.manual_seed(1)
    out = step(x).sum(1)
    out[1:].sum().backward()
    assert torch.equal(torch.get_rng_state(), after)
    assert torch.allclose(out, plain, rtol=0, atol=0, equal_nan=True)
    for it, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(it.grad, gradient, rtol=0, atol=0, equal_nan=True)


def _places():
    return {torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd}


def _environment():
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return ShapeEnv()
