"""Results of calls that stay, and those that go with a backward."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.drop_in.records.held_results import HeldResults  # noqa: E402


def run(stays, num_calls=5):
    """What is held of calls whose backwards end from the last to the first."""
    results, held, made = HeldResults(), [], []
    for i in range(num_calls):
        made.append(torch.zeros(i + 1))
        results.add(i, [made[-1]])
    for i in reversed(range(num_calls)):
        gradient = torch.zeros(10)
        if stays(i):
            held.append((made[i], gradient))
        made[i] = None
        results.end(i, [gradient])
    return results.held_bytes(num_calls)


def test_what_the_loop_keeps_is_held():
    """Outputs of 4 bytes and more, and gradients of 40; also of the last calls."""
    assert run(lambda i: True) == (44, 48, 52, 56, 60)


def test_what_goes_is_not():
    """The last two backwards are followed by too few others to know."""
    assert run(lambda i: False) == (0, 0, 0, 0, 0)
    assert run(lambda i: i == 3) == (0, 0, 0, 56, 0)


def test_of_two_calls_nothing_is_known():
    """A gradient goes to the part before, or stays: no later backward tells."""
    assert run(lambda i: True, num_calls=2) == (0, 0)


def test_a_loss_that_stays_says_nothing_of_the_outputs_of_other_calls():
    """The last call makes it, and the loop holds it to the end of the step."""
    results, loss = HeldResults(), torch.zeros(1)
    outputs = [torch.zeros(9000), torch.zeros(9000)]
    for number, made in enumerate((*outputs, loss)):
        results.add(number, [made])
    for number in (2, 1, 0):
        results.end(number, [torch.zeros(9000)])
    assert results.held_bytes(3) == (0, 0, 4)
