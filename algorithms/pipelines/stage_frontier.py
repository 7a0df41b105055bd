"""The choices of a stage: bytes kept for each micro-batch in flight, bytes needed, and time.

A micro-batch goes through a stage twice, and in between the stage holds something for it while
others pass: with n micro-batches in flight it holds that n times, but runs one of them at a time.
So two sizes count. Let a persistent schedule of layers ``lo..hi-1`` *hold* ``h`` bytes between
forward and backward, and *need* ``q`` bytes, held ones included, while it runs. Then n
micro-batches fit where ``(n - 1) h + q`` does.

The points ``(h, q, time)`` that no other beats follow from right to left. With ``T(i, j, m)`` the
time of replaying layers ``i..j-1`` forward and backward in ``m`` bytes (`persistent`), the first of
the layers left is either kept with its bundle, or starts a segment that is dropped and run again::

    keep i:          h = saved_i + h',  q = max(saved_i + q', what F_i and B_i need)
    drop i..j-1:     h = x_j + h',      q = max(x_j + q', what the forwards need, m),
                     time = F_i + .. + F_{j-1} + time' + T(i, j, m)

at every break point of T. A segment that ends at ``hi`` holds nothing; its replay needs no gradient
before its first backward, so it may run while the stage waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.chain import Chain, Stage
from schedsim.pipelines import StagePlan, keep_all, layer_inputs, stage_input

from ..chains._recurrence import Table
from ..chains.persistent import Problem
from ._pareto_points import undominated

MAX_POINTS = 256
"""Points kept for each run of layers; beyond that, some between are left out."""

MAX_WORK = 6000
"""Points times layers: of longer runs, fewer points are kept."""

# By which sums of the same times differ.
_ROUNDING = 1e-9

MAX_TABLE_POINTS = 20_000_000
MAX_TABLE_WORK = 2_000_000_000


@dataclass(frozen=True)
class Front:
    """Points of layers ``lo..hi-1``, by ascending time; sizes leave out the layers' input.

    Attributes
    ----------
    held_bytes, need_bytes : (num_points,) int64
    time_s, late_s : (num_points,) float64
        Forward and backward, replays included; what of it must wait for the gradient.
    complete
        Whether no point was left out.
    """

    held_bytes: NDArray[np.int64]
    need_bytes: NDArray[np.int64]
    time_s: NDArray[np.float64]
    late_s: NDArray[np.float64]
    complete: bool
    _step: NDArray[np.int64]  # layers up to where what is left begins
    _child: NDArray[np.int64]  # the point there
    _memory: NDArray[np.int64]  # of the dropped segment; -1 where the layer is kept

    @property
    def num_points(self) -> int:
        """Number of points."""
        return int(self.time_s.size)


class StageFrontiers:
    """The fronts of all runs of layers of a chain that may be stages; equal ones are found once.

    Parameters
    ----------
    chain
        One micro-batch through the whole model.
    cap_bytes
        Nothing that needs more is looked at.
    frees_outputs
        Whether a stage's own output is not needed by its backward.
    frees_last
        Whether that holds for the last stage too, which sends its output nowhere.
    max_points
        Points kept a front.

    Raises
    ------
    WorkLimitReached
        The replays' exact curves have too many break points.

    Notes
    -----
    A front of l layers takes O(l P Q log) time, P its points and Q those of T.

    Examples
    --------
    >>> from schedsim.workloads.synthetic import uniform
    >>> front = StageFrontiers(uniform(4), 10**9).front(0, 2)
    >>> (front.held_bytes // 10**6).tolist(), (front.need_bytes // 10**6).tolist()
    ([16, 8, 9, 0, 1, 0], [18, 18, 11, 18, 11, 11])
    >>> (1000 * front.time_s).round().tolist()
    [6.0, 7.0, 7.0, 8.0, 8.0, 9.0]
    """

    def __init__(
        self,
        chain: Chain,
        cap_bytes: int,
        *,
        frees_outputs: bool = False,
        frees_last: bool = False,
        max_points: int = MAX_POINTS,
    ) -> None:
        self.chain, self.cap_bytes = chain, cap_bytes
        self.frees_outputs, self.frees_last = frees_outputs, frees_last
        self.max_points = max_points
        # With an empty stage at the end, no run of layers ends at the loss.
        end = Stage("end of the layers", 0.0, 0.0, 0, 0)
        layers = replace(chain, stages=(*chain.stages, end), loss_s=0.0, loss_workspace_bytes=0)
        self.problem = Problem(replace(layers, static_bytes=0))
        self._fronts: dict[tuple[int, bool], Front] = {}

    @cached_property
    def _table(self) -> Table:
        cap = self.cap_bytes + self.problem.outside_bytes
        return self.problem.solve_exact(cap, max_points=MAX_TABLE_POINTS, max_work=MAX_TABLE_WORK)

    def front(self, lo: int, hi: int) -> Front:
        """The points of layers ``lo..hi-1``."""
        last = hi == self.chain.num_stages
        for i in range(hi - 1, lo - 1, -1):
            key = (int(self.problem.row_of[i, hi - i]), last)
            if key not in self._fronts:
                self._fronts[key] = self._extend(i, hi)
        return self._fronts[int(self.problem.row_of[lo, hi - lo]), last]

    def _known(self, i: int, hi: int) -> Front:
        if i == hi:
            return _NOTHING
        last = hi == self.chain.num_stages
        return self._fronts[int(self.problem.row_of[i, hi - i]), last]

    def _extend(self, i: int, hi: int) -> Front:
        """The front of ``i..hi-1`` from those of its ends, by both kinds of first step."""
        found = [self._keep(i, hi, self._known(i + 1, hi))]
        problem, peak, forward_s = self.problem, 0, 0.0
        x = problem.x
        for j in range(i + 1, hi + 1):
            before = int(x[j - 1]) if j - 1 > i else 0
            peak = max(peak, before + int(x[j]) + int(problem.forward_ws[j - 1]))
            forward_s += float(problem.forward_s[j - 1])
            if peak > self.cap_bytes:
                break
            found.append(self._drop((i, j, hi), peak, forward_s, self._known(j, hi)))
        columns = [np.concatenate(column) for column in zip(*found, strict=True)]
        complete = all(self._known(j, hi).complete for j in range(i + 1, hi + 1))
        most = min(self.max_points, max(32, MAX_WORK // (hi - i)))
        return self._best(columns, complete, most)

    def _keep(self, i: int, hi: int, child: Front) -> tuple[NDArray[Any], ...]:
        p = self.problem
        saved, output = int(p.saved[i]), int(p.x[i + 1])
        gradient = int(p.x[i]) if i else 0
        held = saved - self._freed(hi) if i == hi - 1 else saved
        backward = held + output + gradient + int(p.backward_ws[i])
        own = max(saved + int(p.saving_ws[i]), backward)
        if i == self.chain.num_stages - 1:
            own = max(own, saved + output + self.chain.loss_workspace_bytes)
        num, seconds = child.num_points, float(p.own_s[i] - p.forward_s[i])
        return (
            held + child.held_bytes,
            np.maximum(saved + child.need_bytes, own),
            float(p.forward_s[i]) + seconds + child.time_s,
            seconds + child.late_s,
            np.full(num, 1),
            np.arange(num),
            np.full(num, -1),
        )

    def _freed(self, hi: int) -> int:
        """Bytes of the output of a stage that ends at `hi`, if its backward does not need it."""
        frees = self.frees_last if hi == self.chain.num_stages else self.frees_outputs
        return int(self.problem.x[hi]) if frees else 0

    def _drop(
        self, ends: tuple[int, int, int], peak: int, forward_s: float, child: Front
    ) -> tuple[NDArray[Any], ...]:
        (i, j, hi), table = ends, self._table
        row = int(self.problem.row_of[i, j - i])
        points = slice(int(table.start[row]), int(table.start[row] + table.count[row]))
        memory, replay_s = table.memory[points], table.values[points]
        kept = int(self.problem.x[j]) if j < hi else 0
        num, ways = child.num_points, memory.size
        # A replay that ends at `hi` counts the output to the end, as if its backward needed it.
        replay = memory - (self._freed(hi) if j == hi else 0)
        need = np.maximum(peak, np.maximum((kept + child.need_bytes)[:, None], replay[None, :]))
        late = child.late_s[:, None] + replay_s[None, :]
        if j == hi:  # what stands before the first backward waits for nothing
            early = [self._early_s(i, j, int(m)) for m in memory]
            late = late - np.array(early)[None, :]
        return (
            np.repeat(kept + child.held_bytes, ways),
            need.ravel(),
            (forward_s + child.time_s[:, None] + replay_s[None, :]).ravel(),
            late.ravel(),
            np.full(num * ways, j - i),
            np.repeat(np.arange(num), ways),
            np.tile(memory, num),
        )

    def usual(self, lo: int, hi: int) -> list[tuple[Front, StagePlan]]:
        """The fixed plans of layers ``lo..hi-1``, each as a front of its own.

        Other points may beat them. But the number of messages that wait on a device depends on how
        fast the devices beside it are: in a whole pipeline the slower plan may be the one that
        fits.
        """
        num = hi - lo
        whole = self._replayed(lo, hi, hi, _NOTHING)
        kept = each = _NOTHING
        for i in range(hi - 1, lo - 1, -1):
            kept = _of_columns(self._keep(i, hi, kept), True)
            each = self._replayed(i, i + 1, hi, each)
        plans = keep_all(num), layer_inputs(num), stage_input(num)
        found = list(zip((kept, each, whole), plans, strict=True))
        # Within a cap there may be no replay at all, or only one with repeats of its own.
        p = self.problem
        once_s = float(p.forward_s[lo:hi].sum() + p.own_s[lo:hi].sum()) * (1 + _ROUNDING)
        return [(one, plan) for one, plan in found if one.num_points and one.time_s[0] <= once_s]

    def _replayed(self, i: int, j: int, hi: int, child: Front) -> Front:
        """The one point at which layers ``i..j-1`` run again as fast as they can."""
        p = self.problem
        peak = max(
            (int(p.x[k]) if k > i else 0) + int(p.x[k + 1]) + int(p.forward_ws[k])
            for k in range(i, j)
        )
        forward_s = float(p.forward_s[i:j].sum())
        columns = self._drop((i, j, hi), peak, forward_s, child)
        return _of_columns([column[-1:] for column in columns], True)

    def _early_s(self, i: int, j: int, memory: int) -> float:
        total = 0.0
        for run in self.problem.sub_runs(self._table, memory, i, j)[0].tolist():
            if run >= self.problem.chain.num_stages:
                break
            total += float(self.problem.forward_s[run])
        return total

    def _best(self, columns: list[NDArray[Any]], complete: bool, most: int) -> Front:
        held, need, time_s, late_s = columns[:4]
        order = np.lexsort((need, held, late_s, time_s))
        order = order[need[order] <= self.cap_bytes]
        held, need = held[order].astype(np.int64), need[order].astype(np.int64)
        chosen = order[undominated(held, need)]
        if chosen.size > most:
            complete = False
            chosen = chosen[_spread(columns, chosen, most)]
        return _of_columns([column[chosen] for column in columns], complete)

    def with_usual(self, lo: int, hi: int) -> tuple[Front, list[StagePlan]]:
        """The front with the points behind it of `usual` that differ, and the plans of these."""
        front = self.front(lo, hi)
        known = set(zip(*(column.tolist() for column in _sizes_and_times(front)), strict=True))
        points, plans = [front], []
        for one, plan in self.usual(lo, hi):
            values = tuple(column.item() for column in _sizes_and_times(one))
            if values not in known and one.need_bytes[0] <= self.cap_bytes:
                known.add(values)
                points.append(one)
                plans.append(plan)
        columns = [np.concatenate(column) for column in zip(*map(_columns, points), strict=True)]
        return _of_columns(columns, front.complete), plans

    def plan(self, lo: int, hi: int, point: int) -> StagePlan:
        """The runs behind a point of ``front(lo, hi)``."""
        num = self.problem.chain.num_stages
        parts: list[list[str]] = []
        i = lo
        while i < hi:
            front = self.front(i, hi)
            # A front may be that of an equal run of layers elsewhere: its steps are relative.
            step, memory = int(front._step[point]), int(front._memory[point])
            j = i + step
            if memory < 0:
                parts.append([f"B{i - lo}"])
            else:
                runs = self.problem.sub_runs(self._table, memory, i, j)[0].tolist()
                parts.append([f"F{r - lo}" if r < num else f"B{2 * num - r - lo}" for r in runs])
            point, i = int(front._child[point]), j
        return StagePlan(tuple(run for part in reversed(parts) for run in part))


def _sizes_and_times(front: Front) -> tuple[NDArray[Any], ...]:
    return front.held_bytes, front.need_bytes, front.time_s, front.late_s


def _columns(front: Front) -> tuple[NDArray[Any], ...]:
    return (*_sizes_and_times(front), front._step, front._child, front._memory)


def _of_columns(columns: Sequence[NDArray[Any]], complete: bool) -> Front:
    """The front of points whose columns are those of `StageFrontiers._keep`."""
    held, need, time_s, late_s, step, child, memory = columns
    held, need = held.astype(np.int64), need.astype(np.int64)
    return Front(held, need, time_s, late_s, complete, step, child, memory)


_NONE, _NO_TIME = np.zeros(1, np.int64), np.zeros(1)
_NOTHING = _of_columns([_NONE, _NONE, _NO_TIME, _NO_TIME, _NONE, _NONE, _NONE], True)


def _spread(columns: list[NDArray[Any]], chosen: NDArray[np.int64], most: int) -> Any:
    """`most` places in `chosen`, evenly over time, with the least of each size among them."""
    places = np.linspace(0, chosen.size - 1, most - 2).round().astype(np.int64)
    ends = [int(np.argmin(columns[c][chosen])) for c in (0, 1)]
    return np.unique(np.concatenate([places, ends]))
