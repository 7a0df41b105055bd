"""Ops of embedding bags measured on made-up inputs: each bag has entries, as in a real step."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.costs import measured as measuring  # noqa: E402
from schedsim.validation.costs.bags import bag_contents  # noqa: E402
from schedsim.validation.measure import AllocatorMeter  # noqa: E402

aten = torch.ops.aten
MODES = ("sum", "mean", "max")


def bags_of(mode, num_entries=200, num_bags=40):
    model = torch.nn.EmbeddingBag(50, 16, mode=mode)
    words, begins = torch.randint(50, (num_entries,)), torch.arange(num_bags) * 5 % num_entries
    captured = capture(model, (words, begins.sort().values), lambda y: y.square().mean())
    return captured.program, [c for c in captured.program.calls if "embedding_bag" in c.name]


@pytest.mark.parametrize("mode", MODES)
def test_a_backward_takes_the_workspace_that_it_takes_in_a_step(mode):
    """With bags that are all empty, the backward of a maximum took a third of it."""
    program, [_, backward] = bags_of(mode)
    run = measuring._made_up_run(program, backward, torch.device("cpu"))
    words, begins = torch.randint(50, (200,)), torch.arange(40) * 5
    table = torch.randn(50, 16)
    number = MODES.index(mode)
    out, *known = aten._embedding_bag(table, words, begins, False, number)
    given = (out, words, begins, *known, 50, False, number, False, None, -1)

    def in_a_step():
        return aten._embedding_bag_backward(*given)

    in_a_step()
    [expected] = AllocatorMeter().read(in_a_step)
    [found] = AllocatorMeter().read(run)
    assert found.peak_bytes == expected.peak_bytes


def test_entries_are_shared_out_in_order():
    """Seven entries, three bags: 3, 2 and 2 of them; rows are rows of the table."""
    program, [forward, backward] = bags_of("max", num_entries=7, num_bags=3)
    words, begins = forward.args[1].value, forward.args[2].value
    found = bag_contents(program, forward)
    assert found[words].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert found[begins].tolist() == [0, 3, 5]
    again = bag_contents(program, backward)
    of_entry, sizes, largest = (backward.args[i].value for i in (3, 4, 5))
    assert again[of_entry].tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert again[sizes].tolist() == [3, 2, 2]
    assert again[largest].shape == (3, 16)
    assert 0 <= int(again[largest].min()) <= int(again[largest].max()) < 50


def test_other_ops_are_left_alone():
    """Only bags are filled so."""
    captured = capture(torch.nn.Linear(4, 4), (torch.randn(2, 4),), lambda y: y.sum())
    assert not any(bag_contents(captured.program, call) for call in captured.program.calls)
