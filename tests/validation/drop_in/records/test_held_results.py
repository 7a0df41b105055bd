"""Results of calls that stay, and those that go with a backward."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.drop_in.records.held_results import HeldResults, Waiting  # noqa: E402


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


def test_a_gradient_waits_for_the_part_that_made_what_several_read():
    """Of calls 0 to 3, 2 and 3 read what 0 has made: its gradient stands by while 1 and 2 run."""
    results = HeldResults()
    summed, handed = torch.zeros(100), torch.zeros(10)
    results.begin(~3, [torch.zeros(1)])
    results.end(3, [handed, summed])
    results.begin(~2, [handed])
    handed = torch.zeros(10)
    results.end(2, [handed])
    results.begin(~1, [handed, None])
    handed = torch.zeros(10)
    results.end(1, [handed])
    results.begin(~0, [handed, summed.view(10, 10)])
    del handed, summed
    results.end(0, [torch.zeros(10)])
    assert results.waiting() == (Waiting(~2, 3, 400), Waiting(~1, 3, 400))


def test_what_is_held_to_the_end_does_not_wait():
    """It counts from its backward on."""
    results, held = HeldResults(), [torch.zeros(100) for _ in range(3)]
    for number in (2, 1, 0):
        results.begin(~number, [])
        results.end(number, [held[number]])
    assert results.held_bytes(3) == (400, 400, 400)
    assert results.waiting() == ()
