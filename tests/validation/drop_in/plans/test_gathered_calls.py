"""Bytes around the calls of parts, read in whole steps: each number by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.drop_in.parts.part_line import PartCost, peak_of
from schedsim.validation.drop_in.plans.gathered_calls import (
    HALVES,
    CallLevels,
    GatheredRecord,
    Mode,
    calls_in_line,
    least_of,
    levels_of,
    most_of,
)
from schedsim.validation.drop_in.records.outside_code import OutsideBytes


def call(shared):
    """A call of a part with inputs of 10 bytes, given a gradient of 4."""
    part = SimpleNamespace(input_bytes=lambda: 10, given_bytes=lambda: 4)
    return SimpleNamespace(part=part, shared_bytes=shared)


CALLS = [call(0), call(10)]
COSTS = [PartCost(0, 20, 35, 50, 1.0), PartCost(1, 30, 45, 60, 1.0)]
MARKS = [(what, 0) for what in HALVES[:2]] + [(what, 1) for what in HALVES]
MARKS += [(what, 0) for what in HALVES[2:]] + [("end", -1)]
# Level at the start of each stretch, and the most in it: before the first mark, and after each.
STRETCHES = [(0, 70), (60, 90), (70, 100), (110, 140), (130, 150), (145, 180), (90, 120)]
STRETCHES = [*STRETCHES, (100, 130), (40, 95), (30, 30)]


def test_levels_are_beside_what_the_parts_keep():
    """The second call's input is an output of the first, and counts there."""
    stretches = [OutsideBytes(0, 0, *pair) for pair in STRETCHES]
    found = levels_of(CALLS, COSTS, MARKS, stretches)
    first = CallLevels(
        forward=60 - 10, between=100 - 20, backward=100 - 20 - 4 - 10, after=max(70, 95)
    )
    second = CallLevels(
        forward=110 - 20, between=150 - 20 - 30, backward=145 - 20 - 30 - 4, after=120 - 20
    )
    assert found == (first, second)
    # A backward that has not run leaves nothing to be learnt.
    assert levels_of(CALLS, COSTS, MARKS[:-3], stretches[:-3]) is None


def test_a_step_by_the_schedules_that_were_read_has_the_peak_that_was_read():
    """The most that was read between halves; within them, what the levels and the parts say."""
    stretches = [OutsideBytes(0, 0, *pair) for pair in STRETCHES]
    levels = levels_of(CALLS, COSTS, MARKS, stretches)
    record = GatheredRecord(((0, 0), (1, 0)), (0, 1), Mode(), (0, 10), levels, 7)
    line = calls_in_line(record, levels, [(cost,) for cost in COSTS], 1000)
    between = max(70, 100, 150, 120, 95)
    forwards = max(60 - 10 + 35, 110 - 10 + 45)
    backwards = max(100 - 20 - 4 - 10 + 50, 145 - 30 - 4 - 10 + 60)
    assert peak_of(line, COSTS) == 1007 + max(between, forwards, backwards)


def test_the_least_of_readings_and_the_most_of_steps():
    """Call by call, number by number."""
    one, other = (CallLevels(1, 6, 3, 8),), (CallLevels(5, 2, 7, 4),)
    rows = [GatheredRecord(((0, 0),), (0,), Mode(), (0,), row, 0) for row in (one, other)]
    assert least_of(rows) == (CallLevels(1, 2, 3, 4),)
    assert most_of([one, other]) == (CallLevels(5, 6, 7, 8),)
