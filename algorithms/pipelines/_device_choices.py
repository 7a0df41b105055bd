"""The choices that a device has for its stages within its memory, before any simulation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .stage_frontier import Front

MOST_THRESHOLDS = 24


@dataclass(frozen=True, slots=True)
class StageChoice:
    """Points of a stage's front, which the stage's micro-batches take in turn.

    Attributes
    ----------
    points
        Indices into the front: one, or one for each micro-batch in flight.
    time_s, late_s
        Seconds of each point: the whole time, and the part that must wait for the gradient.
    size_bytes
        Bytes that the stage takes with these points, without messages that wait.
    """

    points: tuple[int, ...]
    time_s: tuple[float, ...]
    late_s: tuple[float, ...]
    size_bytes: int

    @property
    def mean_s(self) -> float:
        """Mean time of a micro-batch, in seconds."""
        return sum(self.time_s) / len(self.time_s)


class _Mixable(NamedTuple):
    """Points of a stage, and the pairs of points that its micro-batches may take in turn.

    Pair (a, b) takes point a for some micro-batches in flight and b for the others.

    Attributes
    ----------
    points : (n,) int64
        Indices into the front.
    more_bytes, taken_bytes : (n, n) int64
        Bytes by which a micro-batch holds more with a than with b; bytes that all take with b.
    time_s : (n,) float64
    faster : (n, n) bool
        Whether a is faster than b and holds more.
    """

    points: NDArray[np.int64]
    more_bytes: NDArray[np.int64]
    taken_bytes: NDArray[np.int64]
    time_s: NDArray[np.float64]
    faster: NDArray[np.bool_]


@dataclass(frozen=True)
class HeldStage:
    """A stage as its device sees it: its front, and the most micro-batches in flight.

    Attributes
    ----------
    in_flight
        Micro-batches that the stage holds at once, the running one included.
    input_bytes
        Bytes of its input, which it additionally holds for each of them.
    """

    front: Front
    in_flight: int
    input_bytes: int

    def bytes_of(self, point: int) -> int:
        """Bytes that the stage takes with this point and so many micro-batches in flight."""
        return self.in_flight * self.held_by(point) + self.work_of(point)

    def held_by(self, point: int) -> int:
        """Bytes that each micro-batch in flight holds, its input among them."""
        return int(self.front.held_bytes[point]) + self.input_bytes

    def work_of(self, point: int) -> int:
        """Bytes that the running micro-batch needs beyond those that it holds."""
        return int(self.front.need_bytes[point] - self.front.held_bytes[point])

    @cached_property
    def sizes_bytes(self) -> NDArray[np.int64]:
        """The `bytes_of` of every point, (num_points,)."""
        held = self.front.held_bytes + self.input_bytes
        return self.in_flight * held + self.front.need_bytes - self.front.held_bytes

    @cached_property
    def by_time(self) -> NDArray[np.int64]:
        """The points by ascending time, of equal times first the one that waits least."""
        return np.lexsort((self.front.late_s, self.front.time_s))

    @cached_property
    def to_mix(self) -> _Mixable:
        """Pairs of the points that no other point beats for so many in flight, which are few."""
        front = self.front
        size = (self.in_flight - 1) * front.held_bytes + front.need_bytes
        order = np.lexsort((size, front.time_s))
        least = np.minimum.accumulate(size[order])
        places = order[np.concatenate([[True], size[order][1:] < least[:-1]])]
        held, time_s = front.held_bytes[places], front.time_s[places]
        work = front.need_bytes[places] - held
        more = held[:, None] - held[None, :]
        taken = self.in_flight * (self.input_bytes + held[None, :])
        return _Mixable(
            places,
            more,
            taken + np.maximum(work[:, None], work[None, :]),
            time_s,
            (time_s[:, None] < time_s[None, :]) & (more > 0),
        )

    def choice(self, points: Sequence[int]) -> StageChoice:
        """The choice of `points` in turn."""
        front, num = self.front, len(points)
        shares = [self.in_flight // num + (p < self.in_flight % num) for p in range(num)]
        held = sum(n * self.held_by(p) for n, p in zip(shares, points, strict=True))
        return StageChoice(
            tuple(points),
            tuple(float(front.time_s[p]) for p in points),
            tuple(float(front.late_s[p]) for p in points),
            held + max(self.work_of(p) for p in points),
        )


def uniform_choices(stage: HeldStage, cap_bytes: int) -> list[StageChoice]:
    """One point for all micro-batches: the points that fit and that no other beats in both times.

    They come by ascending time; the list is empty where nothing fits.
    """
    points = stage.by_time[stage.sizes_bytes[stage.by_time] <= cap_bytes]
    late = stage.front.late_s[points]
    least = np.minimum.accumulate(late)
    new = np.ones(points.size, np.bool_)
    new[1:] = late[1:] < least[:-1]
    return [stage.choice((p,)) for p in points[new].tolist()]


def mixed_choice(stage: HeldStage, cap_bytes: int) -> StageChoice | None:
    """The best two points in turn: some micro-batches keep more than the others.

    Of n micro-batches in flight, k follow the faster point, as many as fit.

    References
    ----------
    Korthikanti et al. 2022, appendix C, for "store all" beside "recompute all"; here any two
    points.
    """
    n, front = stage.in_flight, stage.front
    if n < 2 or front.num_points < 2:
        return None
    k, mean = _fastest_mixes(stage, cap_bytes)
    if not np.isfinite(mean).any():
        return None
    a, b = np.unravel_index(int(np.argmin(mean)), mean.shape)
    count, points = int(k[a, b]), stage.to_mix.points
    return stage.choice((int(points[a]),) * count + (int(points[b]),) * (n - count))


def _fastest_mixes(
    stage: HeldStage, cap_bytes: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """For each pair of points how many micro-batches take the first, and the mean time of all."""
    n, pairs = stage.in_flight, stage.to_mix
    time_s, more = pairs.time_s, pairs.more_bytes
    room = cap_bytes - pairs.taken_bytes
    faster = pairs.faster & (room >= more)
    k = np.where(faster, np.minimum(room // np.maximum(more, 1), n - 1), 0)
    mean = time_s[None, :] - k / n * (time_s[None, :] - time_s[:, None])
    return k, np.where(faster, mean, np.inf)


def least_mean_s(stage: HeldStage, cap_bytes: int, *, mix: bool) -> float:
    """The least mean time of a micro-batch within `cap_bytes`; infinite where nothing fits."""
    fits = stage.sizes_bytes <= cap_bytes
    if not fits.any():
        return np.inf
    least = float(stage.front.time_s[fits].min())
    if mix and stage.in_flight > 1 and stage.front.num_points > 1:
        least = min(least, float(_fastest_mixes(stage, cap_bytes)[1].min()))
    return least


def all_mixed(stage: HeldStage) -> list[StageChoice]:
    """Every two points in turn, the first for some of the micro-batches in flight."""
    front, n = stage.front, stage.in_flight
    pairs = [
        (a, b)
        for a, b in itertools.permutations(range(front.num_points), 2)
        if front.time_s[a] < front.time_s[b] and front.held_bytes[a] > front.held_bytes[b]
    ]
    return [stage.choice((a,) * k + (b,) * (n - k)) for a, b in pairs for k in range(1, n)]


def least_choice(stage: HeldStage) -> StageChoice:
    """The point that needs the least memory."""
    p = min(range(stage.front.num_points), key=lambda q: (stage.bytes_of(q), q))
    return stage.choice((p,))


def joint_choice(stages: Sequence[HeldStage], cap_bytes: int) -> tuple[StageChoice, ...] | None:
    """The fastest points of several stages on one device; ``None`` where nothing fits.

    For each bound on the working set, a multiple-choice knapsack over the held bytes is solved by
    merging the stages' trade-offs.
    """
    works = np.unique(np.concatenate([s.front.need_bytes - s.front.held_bytes for s in stages]))
    if works.size > MOST_THRESHOLDS:
        works = works[np.linspace(0, works.size - 1, MOST_THRESHOLDS).round().astype(int)]
    best: tuple[float, tuple[int, ...]] | None = None
    for work in works.tolist():
        found = _knapsack(stages, cap_bytes - work, work)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    if best is None:
        return None
    return tuple(stage.choice((p,)) for stage, p in zip(stages, best[1], strict=True))


def _knapsack(
    stages: Sequence[HeldStage], room_bytes: int, work_bytes: int
) -> tuple[float, tuple[int, ...]] | None:
    """Least time with `room_bytes` for held bytes, over points of at most this working set."""
    states: list[tuple[int, float, tuple[int, ...]]] = [(0, 0.0, ())]
    for stage in stages:
        front = stage.front
        points = np.flatnonzero(front.need_bytes - front.held_bytes <= work_bytes).tolist()
        grown = []
        for size, seconds, chosen in states:
            for p in points:
                held = int(front.held_bytes[p]) + stage.input_bytes
                total = size + stage.in_flight * held
                if total <= room_bytes:
                    grown.append((total, seconds + float(front.time_s[p]), (*chosen, p)))
        grown.sort(key=lambda item: item[:2])
        states, least = [], np.inf
        for item in grown:
            if item[1] < least:
                least = item[1]
                states.append(item)
        if not states:
            return None
    return states[-1][1], states[-1][2]


def mean_bound(front: Front, held_bytes: float) -> float:
    """A lower bound on the time of mixes of points that hold `held_bytes` on average.

    It is the `lower_envelope`; infinite where no mix holds so little.
    """
    hull = lower_envelope(front)
    if not hull or held_bytes < hull[0][0]:
        return float("inf")
    for left, right in itertools.pairwise(hull):
        if held_bytes < right[0]:
            share = (held_bytes - left[0]) / (right[0] - left[0])
            return left[1] + share * (right[1] - left[1])
    return hull[-1][1]


def lower_envelope(front: Front) -> list[tuple[float, float]]:
    """The corners of the lower convex envelope of time over held bytes, more bytes faster."""
    order = np.lexsort((front.time_s, front.held_bytes))
    hull: list[tuple[float, float]] = []
    for p in order.tolist():
        point = (float(front.held_bytes[p]), float(front.time_s[p]))
        if hull and point[1] >= hull[-1][1]:
            continue
        while len(hull) > 1 and _above(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _above(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    """Whether b lies on or above the line from a to c."""
    return (b[1] - a[1]) * (c[0] - a[0]) >= (c[1] - a[1]) * (b[0] - a[0])
