"""A model as parts: unfolded sequences, blocks by name, and what they read."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.block_level.parts import (  # noqa: E402
    StepInputs,
    is_line,
    joined,
    named_parts,
    sequential_parts,
)
from torch import nn  # noqa: E402

from schedsim.errors import UnsupportedError  # noqa: E402


def run_parts(parts, step):
    """The output of the last part, each on what it reads."""
    values = [None]
    for part in parts:
        values.append(part.call(step, *(values[read] for read in part.reads)))
    return values[-1]


class Own(nn.Sequential):
    """A subclass, which may have a forward of its own."""

    def forward(self, x):
        return super().forward(x) + 1


def test_sequences_are_unfolded_but_for_subclasses_and_empty_ones():
    """Names say where an item stands and what it is; the parts are the model."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    model = nn.Sequential(inner, Own(nn.Linear(3, 3), nn.ReLU()), nn.Sequential())
    parts = sequential_parts(model)
    assert [part.name for part in parts] == ["0.0:Linear", "0.1:ReLU", "1:Own", "2:Sequential"]
    assert is_line(parts)
    x = torch.randn(2, 3)
    assert torch.equal(run_parts(parts, StepInputs((x,))), model(x))
    assert [part.modules for part in parts[:2]] == [(inner[0],), (inner[1],)]


def test_the_first_part_takes_the_inputs_of_the_step():
    """Positional and by keyword."""

    class First(nn.Module):
        def forward(self, x, *, scale):
            return x * scale

    parts = sequential_parts(nn.Sequential(First(), nn.ReLU()))
    found = run_parts(parts, StepInputs((torch.ones(2),), {"scale": -3.0}))
    assert found.tolist() == [0, 0]


class Sum(nn.Module):
    def forward(self, one, two):
        return one + two


def test_blocks_read_by_name():
    """A skip makes it no line."""
    blocks = [
        ("enter", nn.Linear(2, 2), ("input",)),
        ("deep", nn.Tanh(), ("enter",)),
        ("join", Sum(), ("deep", "enter")),
    ]
    parts = named_parts(blocks)
    assert [part.reads for part in parts] == [(0,), (1,), (2, 1)]
    assert not is_line(parts)
    x = torch.randn(3, 2)
    y = blocks[0][1](x)
    assert torch.equal(run_parts(parts, StepInputs((x,))), torch.tanh(y) + y)


@pytest.mark.parametrize(
    ("blocks", "says"),
    [
        ([("a", ("input",)), ("b", ("c",))], "block 'b' reads 'c', which no block before it makes"),
        ([("a", ("input",)), ("a", ("a",))], "two blocks are called 'a'"),
        ([("a", ("input",)), ("b", ("input", "a"))], "block 'b' reads the input and another value"),
    ],
)
def test_blocks_that_make_no_sense_are_refused(blocks, says):
    """With the block's name and a remedy."""
    with pytest.raises(UnsupportedError, match=says) as caught:
        named_parts([(name, nn.Identity(), reads) for name, reads in blocks])
    assert caught.value.hint


def test_two_parts_become_one():
    """That reads what the first read, and runs both."""
    torch.manual_seed(0)
    parts = sequential_parts(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)))
    both = joined(parts[0], parts[1])
    assert (both.name, both.reads) == ("0:Linear+1:Tanh", (0,))
    assert both.modules == (*parts[0].modules, *parts[1].modules)
    step = StepInputs((torch.randn(3, 2),))
    assert torch.equal(both.call(step), run_parts(parts[:2], step))
