"""The clock of searches, which stands still while kernels are compiled."""

from __future__ import annotations

import pytest

from schedsim import kernels
from schedsim.kernels import CompileClock
from schedsim.plans.effort import Effort


@pytest.fixture
def now(monkeypatch) -> list[float]:
    """The time of day, which the test sets."""
    times = [100.0]
    monkeypatch.setattr(kernels.time, "perf_counter", lambda: times[0])
    return times


def test_it_stands_still_from_the_first_to_the_last_of_nested_compilers(now):
    """A kernel compiles those that it calls: that time is counted once."""
    clock = CompileClock()
    clock.start()
    now[0] += 3
    clock.start()
    now[0] += 4
    assert clock.without() == 100.0
    clock.stop()
    now[0] += 5
    assert clock.without() == 100.0
    clock.stop()
    now[0] += 1
    assert clock.without() == 101.0


def test_a_time_limit_does_not_count_compilation(now, monkeypatch):
    """On a fresh machine the search has as many seconds as on any other."""
    clock = CompileClock()
    monkeypatch.setattr("schedsim.plans.effort.compile_clock", clock)
    effort = Effort(time_limit_s=5.0)
    now[0] += 2
    clock.start()
    now[0] += 30
    assert not effort.is_over()
    assert (effort.left, effort.watchdog_s) == (3.0, 3.0)
    clock.stop()
    now[0] += 2.5
    assert not effort.is_over()
    now[0] += 1
    assert effort.is_over()
    assert effort.ended_by == "clock"
