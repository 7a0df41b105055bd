"""Efforts: parts, what ends them, and what they say of it."""

from __future__ import annotations

import math

import pytest

from schedsim.errors import SchedsimError
from schedsim.plans.effort import DEFAULT_WORK, Effort


def test_parts_take_from_what_is_left():
    """Half of 8 is 4; spent 1 of it, 7 are left, of which a quarter is 1.75."""
    effort = Effort(8.0)
    with effort.part(0.5) as half:
        assert half.left == 4.0
        half.spend(1.0)
    assert effort.left == 7.0
    assert effort.part(0.25).left == 1.75
    assert effort.take(100.0).left == 7.0
    assert effort.share == 1 / 8


def test_work_ends_it_and_is_reproducible():
    """A spent part ends the part alone; the whole ends by itself until it is spent too."""
    effort = Effort(2.0)
    with effort.part(0.5) as part:
        part.spend(1.0)
        assert part.is_over()
        assert not effort.is_over()
    assert effort.ended_by == "itself"
    effort.spend(1.0)
    assert effort.is_over()
    assert effort.ended_by == "work"


def test_the_clock_is_never_called_work():
    """A time limit of nothing is over at once, with work left, and says so; so of its parts."""
    effort = Effort(5.0, time_limit_s=0.0)
    part = effort.part(0.5)
    assert part.left == 2.5  # the watchdog does not decide how much a part gets
    assert part.is_over()
    assert effort.ended_by == "clock"


def test_a_stop_criterion_sees_the_best_so_far():
    """It is asked with seconds of step time; where it holds, everything ends."""
    effort = Effort(5.0, stop=lambda best_s: best_s < 3.0)
    assert not effort.is_over()
    assert not effort.is_over(3.0)
    assert effort.is_over(2.0)
    assert effort.is_over()
    assert effort.ended_by == "stop"


def test_the_strongest_reason_is_told():
    """An interrupt after the clock is an interrupt: the search is not to be taken for a result."""
    effort = Effort(time_limit_s=0.0)
    assert effort.is_over()
    effort.cancel()
    effort.note_clock()
    assert effort.ended_by == "interrupt"


def test_options_become_an_effort():
    """Nothing: the default work with a watchdog; seconds: these alone; both: work, watched."""
    assert Effort.of(None).work == DEFAULT_WORK
    assert Effort.of(None, default=3.0).work == 3.0
    assert not Effort.of(None, 5.0).counted
    both = Effort.of(2.0, 5.0)
    assert (both.work, both.to_options()) == (2.0, {"effort": 2.0, "time_limit_s": 5.0})
    counted = Effort.of(None, 5.0, moves=70)
    assert counted.counted
    assert counted.moves == 70
    assert Effort.of(both) is both


@pytest.mark.parametrize(
    "options",
    [{"work": -1.0}, {"work": math.nan}, {"time_limit_s": -1.0}, {"time_limit_s": math.nan}, {}],
)
def test_amounts_out_of_range_are_refused(options):
    """Below nothing, not a number, or nothing that ends it."""
    with pytest.raises(SchedsimError):
        Effort(**options)


def test_beside_moves_a_long_limit_is_a_watchdog():
    """What does not end by moves spends what is usual, and is done before the clock decides."""
    assert Effort.of(None, 120.0, moves=500, default=20.0).work == 20.0
    assert Effort.of(None, 5.0, moves=500, default=20.0).work == 5.0
    assert Effort.of(None, None, moves=500, default=20.0).work == 20.0


def test_what_is_not_counted_is_cut_short_by_the_clock_alone():
    """Spent work ends a search, and not what runs beside it."""
    effort = Effort(1.0)
    effort.spend(2.0)
    assert effort.is_over()
    assert not effort.out_of_time()
    effort.cancel()
    assert effort.out_of_time()
    late = Effort(1.0, time_limit_s=0.0)
    assert late.out_of_time()
    assert late.ended_by == "clock"
