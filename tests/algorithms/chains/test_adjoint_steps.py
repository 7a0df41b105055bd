"""Adjoint schedules: least among all schedules of tiny chains, exact or with a bound on others."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.chains.adjoint_steps import AdjointSteps, plan_adjoint

from schedsim.errors import InvalidWorkloadError, PlannerLimitError, SchedsimError


def least_time(steps, ram):
    """Dijkstra over every state of the protocol: nothing is said about what stays how long."""
    n = steps.num_steps
    x, a, f = steps.restart_bytes, steps.adjoint_bytes, steps.forward_s
    size = {("x", i): int(x[i]) for i in range(n)} | {("a", i): int(a[i]) for i in range(n)}
    # (where the forward stands or -1, adjoint data in work or -1, left to reverse, stored, disk)
    start = (0, -1, n, frozenset(), frozenset())
    best, queue, count = {start: 0.0}, [(0.0, 0, start)], 0
    while queue:
        time, _, state = heapq.heappop(queue)
        at, work, left, held, disk = state
        if left == 0:
            return time
        if time > best[state]:
            continue
        used = sum(size[one] for one in held)
        found = []
        if work == left - 1:
            found.append((0.0, (at, -1, left - 1, held, disk)))
        if 0 <= at < left:
            go = f[at]
            found.append((go, (at + 1, -1, left, held, disk)))
            found.append((go, (at + 1, at, left, held, disk)))
            for kind in ("x", "a"):
                one = (kind, at)
                if used + size[one] <= ram and one not in held:
                    found.append((go, (at + 1, -1, left, held | {one}, disk)))
                if steps.has_disk and one not in disk:
                    cost = go + size[one] * steps.write_s_per_byte
                    found.append((cost, (at + 1, -1, left, held, disk | {one})))
        for kind, i in held:
            to = (i, -1) if kind == "x" else (-1, i)
            found.append((0.0, (*to, left, held, disk)))
            found.append((0.0, (at, work, left, held - {(kind, i)}, disk)))
        for kind, i in disk:
            to = (i, -1) if kind == "x" else (-1, i)
            cost = size[kind, i] * steps.read_s_per_byte
            found.append((cost, (*to, left, held, disk)))
        for cost, nxt in found:
            if time + cost < best.get(nxt, math.inf):
                best[nxt] = time + cost
                count += 1
                heapq.heappush(queue, (time + cost, count, nxt))
    return math.inf


SIZES = st.lists(st.integers(1, 3), min_size=4, max_size=4)
TIMES = st.lists(st.integers(1, 5), min_size=4, max_size=4)


@settings(max_examples=40)
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
