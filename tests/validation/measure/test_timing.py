"""Times that can be compared: runs of several functions in turn, medians and their spread."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.measure import (  # noqa: E402
    Timing,
    ratio,
    time_interleaved,
)


def test_times_are_compared_round_by_round():
    """A function twice as slow in every round has ratio 2, whatever the rounds were like."""
    assert ratio([2.0, 20.0, 4.0], [1.0, 10.0, 2.0]).median_s == 2.0


def test_a_clock_that_stands_still_says_nothing():
    """Of a round, or of all of them."""
    assert ratio([2.0, 5.0, 4.0], [1.0, 0.0, 2.0]) == ratio([2.0, 4.0], [1.0, 2.0])
    assert ratio([2.0], [0.0]).median_s == 1.0
    assert Timing.of([1.0, 2.0, 3.0]).median_s == 2.0
    order = []
    time_interleaved(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2, warm_up=0
    )
    assert order == ["a", "b", "b", "a"]
