"""What a device may choose within its memory, against all choices one by one."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.pipelines._device_choices import (
    HeldStage,
    joint_choice,
    least_choice,
    mean_bound,
    mixed_choice,
    uniform_choices,
)
from schedsim.algorithms.pipelines.stage_frontier import Front
from tiers import examples

POINTS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 6), st.integers(1, 12), st.integers(0, 4)),
    min_size=1,
    max_size=6,
)


def front_of(points) -> Front:
    """From (held, working set beyond it, time, late part of it)."""
    points = sorted(points, key=lambda point: point[2])
    held, work, time, late = (np.array(column) for column in zip(*points, strict=True))
    none = np.zeros(len(points), np.int64)
    times = (time.astype(float), np.minimum(late, time).astype(float))
    return Front(held, held + work, *times, True, none, none, none)


def stage_of(points, in_flight: int, input_bytes: int = 1) -> HeldStage:
    return HeldStage(front_of(points), in_flight, input_bytes)


def bytes_in_turn(stage: HeldStage, points) -> int:
    """What micro-batches that take `points` in turn hold, and the largest working set."""
    each = [points[j % len(points)] for j in range(stage.in_flight)]
    held = sum(int(stage.front.held_bytes[p]) + stage.input_bytes for p in each)
    return held + max(int(stage.front.need_bytes[p] - stage.front.held_bytes[p]) for p in points)


@given(points=POINTS, in_flight=st.integers(1, 5), data=st.data())
def test_sizes_of_a_choice_are_counted_micro_batch_by_micro_batch(points, in_flight, data):
    """One point, or several in turn; the mean time is over them."""
    stage = stage_of(points, in_flight)
    chosen = data.draw(st.lists(st.integers(0, len(points) - 1), min_size=1, max_size=4))
    choice = stage.choice(chosen)
    if len(chosen) <= in_flight:
        assert choice.size_bytes == bytes_in_turn(stage, chosen)
    assert choice.mean_s == pytest.approx(np.mean([stage.front.time_s[p] for p in chosen]))
    assert stage.bytes_of(chosen[0]) == bytes_in_turn(stage, chosen[:1])
    least = least_choice(stage)
    assert least.size_bytes == min(bytes_in_turn(stage, (p,)) for p in range(len(points)))


@given(points=POINTS, in_flight=st.integers(1, 5), cap=st.integers(0, 80))
def test_one_point_for_all_micro_batches(points, in_flight, cap):
    """All that fit and that no other beats in both times; none besides, and in order."""
    stage = stage_of(points, in_flight)
    found = uniform_choices(stage, cap)
    times = [(choice.time_s[0], choice.late_s[0]) for choice in found]
    front = stage.front
    fits = {
        (float(front.time_s[p]), float(front.late_s[p]))
        for p in range(front.num_points)
        if bytes_in_turn(stage, (p,)) <= cap
    }
    best = {
        one for one in fits if not any(o != one and o[0] <= one[0] and o[1] <= one[1] for o in fits)
    }
    assert times == sorted(best)
    assert all(choice.size_bytes <= cap for choice in found)


@settings(max_examples=examples(60))
@given(points=POINTS, in_flight=st.integers(1, 4), cap=st.integers(0, 60))
def test_two_points_in_turn(points, in_flight, cap):
    """The mix is the fastest pair that fits, of points that no other beats for so many in flight.

    A pair is a faster point that holds more, and a slower one that holds less.
    """
    stage = stage_of(points, in_flight)
    found = mixed_choice(stage, cap)
    front, n = stage.front, in_flight
    pairs = []
    keys = [(front.time_s[p], stage.bytes_of(p)) for p in range(front.num_points)]
    alone = [
        p
        for p, key in enumerate(keys)
        if not any(o != key and o[0] <= key[0] and o[1] <= key[1] for o in keys)
        and key not in keys[:p]
    ]
    for a, b in itertools.permutations(alone, 2):
        faster = front.time_s[a] < front.time_s[b] and front.held_bytes[a] > front.held_bytes[b]
        for k in range(1, n):
            mix = (a,) * k + (b,) * (n - k)
            if faster and bytes_in_turn(stage, mix) <= cap:
                pairs.append(float(np.mean([front.time_s[p] for p in mix])))
    if found is None:
        assert not pairs
        return
    assert found.size_bytes <= cap
    assert len(found.points) == n
    assert found.mean_s == pytest.approx(min(pairs))


@settings(max_examples=examples(60))
@given(
    stages=st.lists(st.tuples(POINTS, st.integers(1, 3)), min_size=1, max_size=3),
    cap=st.integers(0, 90),
)
def test_stages_that_share_a_device(stages, cap):
    """The least sum of times of all combinations that fit, the largest working set counted once."""
    held = [stage_of(points, in_flight) for points, in_flight in stages]
    best = math.inf
    for points in itertools.product(*(range(stage.front.num_points) for stage in held)):
        pairs = list(zip(held, points, strict=True))
        size = sum(stage.in_flight * stage.held_by(p) for stage, p in pairs)
        size += max(stage.work_of(p) for stage, p in pairs)
        if size <= cap:
            best = min(best, sum(float(stage.front.time_s[p]) for stage, p in pairs))
    found = joint_choice(held, cap)
    if found is None:
        assert best == math.inf
        return
    assert sum(choice.mean_s for choice in found) == pytest.approx(best)


@given(points=POINTS, share=st.floats(0, 1))
def test_no_mix_is_faster_than_the_envelope(points, share):
    """No mix of two points is faster at the bytes it holds on average; some pair is as fast."""
    front = front_of(points)
    held, time_s = front.held_bytes, front.time_s
    at = float(held.min() + share * (held.max() - held.min()))
    best = math.inf
    for a, b in itertools.product(range(front.num_points), repeat=2):
        low, high = float(held[a]), float(held[b])
        if low <= at and (at <= high or high <= low):
            part = (at - low) / (high - low) if high > low and at <= high else 0.0
            best = min(best, (1 - part) * time_s[a] + part * time_s[b], time_s[a])
    assert mean_bound(front, at) == pytest.approx(best)
    assert mean_bound(front, float(held.min()) - 0.5) == math.inf
    assert mean_bound(front, 1e9) == time_s.min()


def test_two_points_that_just_fit():
    """One micro-batch holds 4 bytes for a second's work, the other none for three; not in 3."""
    stage = stage_of([(4, 0, 1, 0), (0, 0, 3, 0)], in_flight=2, input_bytes=0)
    found = mixed_choice(stage, 4)
    assert found is not None
    assert (found.points, found.size_bytes, found.mean_s) == ((0, 1), 4, 2.0)
    assert mixed_choice(stage, 3) is None
