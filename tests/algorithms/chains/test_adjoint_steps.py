"""Adjoint schedules: least among all schedules of tiny chains, exact or with a bound on others."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.chains.adjoint_steps import AdjointSteps, plan_adjoint
from slow_adjoint import least_time
from tiers import examples

from schedsim.errors import InvalidWorkloadError, PlannerLimitError, SchedsimError

SIZES = st.lists(st.integers(1, 3), min_size=4, max_size=4)
TIMES = st.lists(st.integers(1, 5), min_size=4, max_size=4)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(
    x=SIZES,
    a=SIZES,
    f=TIMES,
    n=st.integers(1, 4),
    ram=st.integers(0, 7),
    disk=st.sampled_from([None, (0.5, 0.25), (2.0, 1.0)]),
)
def test_no_schedule_of_a_tiny_chain_takes_less(x, a, f, n, ram, disk):
    """Four steps of any sizes: as the shortest path over all states, or refused."""
    rates = {} if disk is None else {"write_s_per_byte": disk[0], "read_s_per_byte": disk[1]}
    steps = AdjointSteps(
        np.array(f[:n], float), np.array(x[:n], np.int64), np.array(a[:n], np.int64), **rates
    )
    least = least_time(steps, ram)
    if math.isinf(least):
        with pytest.raises(SchedsimError, match="cannot be reversed"):
            plan_adjoint(steps, ram)
        return
    plan = plan_adjoint(steps, ram)
    assert plan.optimal
    assert plan.time_s == pytest.approx(least)


def replayed(plan):
    """Seconds and most bytes of a plan's actions, counted one by one."""
    steps, seconds, held, most = plan.steps, 0.0, 0, 0
    for one in plan.actions():
        size = int(
            (steps.restart_bytes if one.data == "restart" else steps.adjoint_bytes)[one.first]
        )
        if one.what == "advance":
            seconds += steps.forward_s[one.first : one.last].sum()
            held += size if one.place == "ram" else 0
            seconds += size * steps.write_s_per_byte if one.place == "disk" else 0.0
        if one.what == "load" and one.place == "ram" and one.last_use:
            held -= size
        if one.what == "load" and one.place == "disk":
            seconds += size * steps.read_s_per_byte
        most = max(most, held)
    assert held == 0
    return seconds, most


@pytest.mark.parametrize("disk", [{}, {"write_s_per_byte": 1e-3, "read_s_per_byte": 5e-4}])
def test_plans_take_what_they_say_and_stay_within(disk):
    """Sizes of up to a million bytes, counted in slots: never over the memory."""
    rng = np.random.default_rng(1)
    for _ in range(6):
        n = int(rng.integers(2, 25))
        x, a = rng.integers(1, 10**6, (2, n))
        steps = AdjointSteps(rng.uniform(1, 9, n), x, a, **disk)
        ram = int(x.sum() * rng.uniform(0.2, 0.8)) + 2 * int(max(x.max(), a.max()))
        plan = plan_adjoint(steps, ram, 500)
        seconds, most = replayed(plan)
        assert seconds == pytest.approx(plan.time_s)
        assert most <= ram
        assert plan.time_s <= 1.1 * plan.bound_s
        assert steps.forward_s.sum() * (1 - 1e-12) <= plan.bound_s <= plan.time_s * (1 + 1e-12)


def test_equal_steps_by_both_tables():
    """The table of lengths and that of sub-chains agree; one odd step takes the latter."""
    ones = np.ones(30, np.int64)
    for ram in (1, 3, 7):
        for disk in ({}, {"write_s_per_byte": 2.0, "read_s_per_byte": 1.0}):
            alike = AdjointSteps(np.ones(30), ones, ones, **disk)
            nearly = AdjointSteps(np.r_[np.ones(29), 1 + 1e-9], ones, ones, **disk)
            assert not nearly.uniform
            first, second = plan_adjoint(alike, ram).time_s, plan_adjoint(nearly, ram).time_s
            assert first == pytest.approx(second, abs=1e-6)


def test_closed_forms():
    """All stored: every forward once. One snapshot: n (n + 1) / 2 - 1 (Maddison 2024)."""
    ones = np.ones(20, np.int64)
    steps = AdjointSteps(np.ones(20), ones, ones)
    assert plan_adjoint(steps, 19).time_s == 20
    assert plan_adjoint(steps, 1).time_s == 20 * 21 // 2 - 1


def test_what_cannot_be_planned_is_refused():
    """With the place, the value, and what would do."""
    ones = np.ones(3, np.int64)
    with pytest.raises(InvalidWorkloadError, match="2 entries"):
        AdjointSteps(np.ones(3), ones[:2], ones)
    with pytest.raises(InvalidWorkloadError, match=r"forward_s\[1\] is nan"):
        AdjointSteps(np.array([1, np.nan, 1]), ones, ones)
    with pytest.raises(InvalidWorkloadError, match="disk"):
        AdjointSteps(np.ones(3), ones, ones, 1.0)
    with pytest.raises(SchedsimError) as caught:
        plan_adjoint(AdjointSteps(np.ones(3), 5 * ones, 7 * ones), 4)
    assert caught.value.hint.startswith("5 are enough")
    with pytest.raises(PlannerLimitError, match="slots"):
        plan_adjoint(AdjointSteps(np.ones(3), ones, ones), 1, 10**9)
    many = np.arange(1, 6001)
    with pytest.raises(PlannerLimitError, match="too many"):
        plan_adjoint(AdjointSteps(np.ones(6000), many, many), 10**6)
