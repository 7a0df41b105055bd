"""Blocks that return more than their activation: planned where the model does not read tensors."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.block_level.block_outputs import BlockOutput, Unread  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim import UnsupportedError  # noqa: E402

WIDTH = 8


class Block(nn.Module):
    """Returns weights and numbers beside its activation, as blocks of transformers do."""

    kind: type = tuple

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.number = 2.0

    def forward(self, x):
        weights = torch.softmax(x, 1)
        return self.kind(
            (x + torch.tanh(self.linear(x * weights)), weights, None, (self.number, 3))
        )


class InLine(nn.Module):
    """Collects the weights, and reads the numbers."""

    def __init__(self, kind=tuple) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(4))
        for layer in self.layers:
            layer.kind = kind

    def forward(self, x):
        weights = ()
        for layer in self.layers:
            x, one, _, numbers = layer(x)
            weights += (one,)
        return x.square().mean() * numbers[0] + self.of(weights)

    def of(self, weights):
        return 0.0


class Reading(InLine):
    def of(self, weights):
        return weights[0].sum()


class Asking(InLine):
    def of(self, weights):
        return float(weights[0].numel())


@pytest.mark.parametrize("kind", [tuple, list])
def test_what_the_model_does_not_read_is_left_out(kind):
    """The step is the plain one to the bit, with blocks run twice."""
    model, x = InLine(kind), torch.randn(16, WIDTH)
    plain = copy.deepcopy(model)
    module = schedsim.rematerialize(model, x, "85%", level="block", effort=0.1)
    expected, found = plain(x), module(x)
    expected.backward()
    found.backward()
    assert max(module.run_counts.values()) > 1
    assert torch.equal(found, expected)
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(p.grad, q.grad) for p, q in pairs)


@pytest.mark.parametrize("model", [Reading(), Asking()])
def test_what_the_model_reads_is_refused(model):
    with pytest.raises(UnsupportedError, match="the model reads what a Block returns") as caught:
        schedsim.rematerialize(model, torch.randn(16, WIDTH), "90%", level="block")
    assert "use_cache=False" in caught.value.hint


def test_other_numbers_than_planned_are_refused():
    """The code around the blocks was given the numbers of the plan."""
    model, x = InLine(), torch.randn(16, WIDTH)
    module = schedsim.rematerialize(model, x, "90%", level="block", check="never", effort=0.1)
    output = BlockOutput.of("Block", model.layers[0](x))
    assert output.rest[1:] == (None, (2.0, 3))
    model.layers[0].number = 5.0
    with pytest.raises(UnsupportedError, match=r"returns \('...', None, \(5.0, 3\)\) beside"):
        output.activation(model.layers[0](x))
    with pytest.raises(UnsupportedError, match=r"and returned \('...', None, \(2.0, 3\)\) when"):
        module(x)


def test_the_form_is_kept():
    x = torch.ones(2)
    assert BlockOutput.of("", x) == BlockOutput()
    assert BlockOutput().activation(x) is BlockOutput().wrap(x) is x
    assert BlockOutput.of("", (x,)) == BlockOutput(tuple)
    assert BlockOutput.of("", [x, 1]) == BlockOutput(list, (1,))
    assert BlockOutput.of("", [x, 1]).wrap(x) == [x, 1]
    assert BlockOutput.of("", (x, [x])).activation((x, [x, x])) is x
    with pytest.raises(UnsupportedError, match=r"returns \(2,\) beside"):
        BlockOutput.of("", [x, 1]).activation([x, 2])
    with pytest.raises(UnsupportedError, match=r"returns \(\) beside"):
        BlockOutput.of("", [x, 1]).activation([x])


@pytest.mark.parametrize(
    "read",
    [
        lambda it: it.shape,
        lambda it: hasattr(it, "numel"),
        lambda it: it[0],
        lambda it: list(it),
        lambda it: bool(it),
        lambda it: it + 1,
        lambda it: torch.ones(2) * it,
        lambda it: torch.cat([torch.ones(2), it]),
        lambda it: torch.nn.functional.relu(it),
    ],
)
def test_every_use_is_refused(read):
    it = Unread("Layer")
    assert not isinstance(it, torch.Tensor | nn.Parameter)
    assert it is not None
    with pytest.raises(UnsupportedError, match="what a Layer returns beside its activation"):
        read(it)
