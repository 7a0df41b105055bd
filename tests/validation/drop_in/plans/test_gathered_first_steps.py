"""Schedules of least peak, before the budget is divided among sharded blocks."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.drop_in.parts.part_line import CallInLine, PartCost
from schedsim.validation.drop_in.plans.gathered_calls import CallLevels, GatheredRecord, Mode
from schedsim.validation.drop_in.plans.gathered_first_steps import GatheredFirstSteps, least_peak
from schedsim.validation.drop_in.plans.ordered_line import plain_line

MUCH, LITTLE = PartCost(0, 80, 90, 100, 1.0), PartCost(1, 20, 90, 120, 1.5)
KEYS = ((0, 0), (0, 1))


def line():
    """Two calls of one part."""
    return plain_line([CallInLine((MUCH, LITTLE), 0, 50, 10, 50, 40)] * 2)


def record():
    """A reading of the same step."""
    levels = (CallLevels(50, 60, 50, 40),) * 2
    return GatheredRecord(KEYS, (1, 1), Mode(), (0, 0), levels, 0)


def test_the_least_peak_is_not_of_what_keeps_least():
    found = least_peak(line())
    assert [cost.number for cost in found.costs] == [LITTLE.number, MUCH.number]
    assert found.peak_bytes == 170
    keeps_least = line().plan_of((LITTLE, LITTLE))
    assert keeps_least.peak_bytes > found.peak_bytes


def test_what_may_exceed_the_budget_is_said_with_its_bytes():
    first = GatheredFirstSteps()
    assert "none was measured" in first.excess
    first.see(record(), reserve_bytes=30)
    assert first.is_new
    first.take(least_peak(line()), 190)
    assert not first.is_new
    assert first.numbers == {KEYS[0]: LITTLE.number, KEYS[1]: MUCH.number}
    assert "take about 170 B on this rank, as measured without the loop's loss" in first.excess
    first.see(record())
    assert first.excess == ""
    first.take(least_peak(line()), 160)
    assert first.excess.endswith("as measured: they may exceed the budget, 160 B")
