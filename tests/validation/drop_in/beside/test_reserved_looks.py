"""Looks at what the allocator reserves: from the second step by a plan on, from an empty cache."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.beside import reserved_looks  # noqa: E402
from schedsim.validation.drop_in.beside.reserved_looks import ReservedLooks  # noqa: E402

CUDA = torch.device("cuda", 0)


@pytest.fixture
def device(monkeypatch):
    """What the allocator holds, and how often its cache was emptied."""
    found = {"reserved": 0, "emptied": 0}

    def empty(_):
        found["emptied"] += 1

    monkeypatch.setattr(reserved_looks, "reserved_bytes", lambda _: found["reserved"])
    monkeypatch.setattr(reserved_looks, "empty_cache", empty)
    return found


def run(looks, device, reserved, plan, budget=100):
    """A step by `plan`; what its end tells."""
    looks.begins(CUDA, *plan)
    device["reserved"] = reserved
    looks.sees()
    return looks.ends(budget)


def several(looks, device, reserved, plan):
    """What the ends of successive steps tell."""
    return [run(looks, device, it, plan) for it in reserved]


def test_the_first_step_by_a_plan_is_not_looked_at(device):
    looks, plan = ReservedLooks(), ({}, 3)
    assert run(looks, device, 200, plan) == 0
    assert (looks.reserved_bytes, device["emptied"]) == (None, 0)
    assert several(looks, device, (80, 90, 90), plan) == [0, 0, 0]
    assert (looks.reserved_bytes, device["emptied"]) == (90, 1)
    assert several(looks, device, (200, 200), plan) == [0, 0]  # settled
    assert (looks.reserved_bytes, device["emptied"]) == (90, 1)


def test_a_plan_is_over_if_two_looks_are(device):
    """The least counts: other code may have run in one of them."""
    looks, plan = ReservedLooks(), ({}, 3)
    first, second = (150, 150, 150), (110, 120, 120)
    assert several(looks, device, (0, *first, *second, 500), plan) == [0] * 6 + [20, 0]
    assert (looks.reserved_bytes, device["emptied"]) == (120, 2)
    again = ({}, 3)  # its schedules were chosen anew
    assert several(looks, device, (0, *first, 99, 99, 99, 500), again) == [0] * 8
    assert looks.reserved_bytes == 99


def test_a_later_step_may_reserve_more_and_an_optimizer_does_not_count(device):
    looks, plan = ReservedLooks(), ({}, 3)
    run(looks, device, 0, plan)
    assert several(looks, device, (80, 120, 120), plan) == [0, 0, 0]  # the second grows
    assert looks.reserved_bytes == 120
    run(looks, device, 80, plan)
    device["reserved"] = 300  # the optimizer has
    assert several(looks, device, (300, 300), plan) == [0, 0]
    assert looks.reserved_bytes == 80


def test_later_steps_are_glanced_at(device):
    """One that adds to the cache then is over; one that finds it so is not."""
    looks, plan = ReservedLooks(), ({}, 3)
    several(looks, device, (0, 80, 80, 80), plan)
    assert several(looks, device, (90, 90, 90, 95), plan) == [0, 0, 0, 0]
    device["reserved"] = 130  # an optimizer has, or a step that nobody looked at
    assert several(looks, device, (130, 130, 130, 130), plan) == [0, 0, 0, 0]
    assert several(looks, device, [130] * 7 + [140], plan) == [0] * 7 + [40]
    assert (looks.reserved_bytes, device["emptied"]) == (140, 1)


def test_a_step_that_is_not_whole_tells_nothing(device):
    looks, plan = ReservedLooks(), ({}, 3)
    run(looks, device, 0, plan)
    looks.begins(CUDA, *plan)
    device["reserved"] = 150
    looks.sees()
    looks.leaves()
    assert looks.ends(100) == 0
    looks.begins(CUDA, *plan)
    assert looks.ends(100) == 0  # no backward has ended
    assert looks.reserved_bytes is None
    assert several(looks, device, (70, 80, 80), plan) == [0, 0, 0]
    assert looks.reserved_bytes == 80


def test_looks_end(device):
    """However often a loop is planned anew."""
    looks = ReservedLooks()
    schedules = {}
    for number in range(200):
        run(looks, device, 50, (schedules, number // 2))
    assert device["emptied"] == reserved_looks._MOST_LOOKS
