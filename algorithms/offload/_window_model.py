"""Several cuts of a step with copies in one MILP: what cannot cross the windows between them.

A cut is the first run of an op, from its start to its end; a window is the time from there to the
start of the next cut's run, and the last one goes on to the end of the step. Take any schedule
whose first runs keep the graph's order. It gives, for each of these moments and tensor w,

- ``hold[w]`` (binary): the device has room for w; ``here[w]``: the share of w that is there, less
  than one only while w is copied back;

and for each run of a cut, each window, and the time before the first cut,

- ``out[w]``: the share of w's first copy to the host that is made in this time; ``there[w]``
  (binary): that copy is complete before the time ends;
- ``back[w]``: the share of w that is copied back in this time, at most one;
- ``again[p]`` (binary): op p, which has run, runs again in this time; no op does during a cut;
- ``length``: its seconds.

These numbers keep the rules below, so that the least sum of lengths is a bound on the makespan.

1. What is held at the start and at the end of a cut's run fits beside what the op itself needs.
2. What is there at a moment was there at the moment before, or was copied back or made since.
3. A first run in a window, and a repeated run, reads what was there when the window began, or was
   copied back or made since.
4. Only what is complete on the host is copied back; only what is there, or was made since, is
   copied to the host.
5. A time is at least as long as what runs in it, as its copies to the host, and as those back.
6. What stays on the device for all of a window fits beside an op that runs again in it, together
   with the largest optional output, where it must have been made there.
7. What does not fit beside that run is neither on the device nor being copied during it: its copies
   and the run need their time one after the other.
8. It comes back after that run, if it is there when the window ends; or its producer runs again,
   beside which there must be room for the output that the first of the two runs has made.
9. What is not there at a moment, and is read later by a first run, was complete on the host by
   then, or its producer runs again later. In a window, so too what a repeated run reads. In whole
   numbers this follows from rules 2 to 4; with shares, half a tensor could else be copied out after
   the moment, and back in place of the other half.
10. Copies have less than a window: one of what a first run in it makes begins behind that run, and
    one back of what a first run in it reads ends before that run (``_deadlines.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from schedsim.dataflow.graph import Graph

from ..graphs._cut_table import Bools, CutTable, Ints
from ..graphs._milp import Milp
from ._deadlines import add_deadlines
from ._timeline import LinkedGraph

CopiesWhole = Literal["shares", "windows", "whole"]
"""Where rule 4 asks for copies that are complete: nowhere, in windows, or everywhere.

The fewer the whole numbers, the sooner the program is solved, and the lower the bound.
"""

# Limits on bytes are wider by more than the rounding of their sums.
_WIDER = 1 + 1e-9


@dataclass(frozen=True)
class AtCut:
    """A moment of the step: the tensors that exist, and the columns of what is on the device.

    `following` is the next first run; times and windows that end before are counted.
    """

    known: Bools
    here: Ints
    hold: Ints
    following: int
    num_times: int
    num_windows: int


@dataclass(frozen=True)
class Between:
    """The columns of what happens between two moments; -1 for an op that does not run again."""

    again: Ints
    back: Ints
    length: Ints


@dataclass(frozen=True)
class WindowProgram:
    """The MILP of some cuts, and where the columns of its moments and windows are.

    Attributes
    ----------
    starts, ends : list of AtCut
        The moments at which the run of each cut starts and ends.
    windows : list of Between
        The window behind each cut.
    outs : list of arrays
        What is copied to the host before the first cut, during its run, in the window behind it,
        and so on.
    """

    milp: Milp
    graph: Graph
    table: CutTable
    starts: list[AtCut]
    ends: list[AtCut]
    windows: list[Between]
    outs: list[Ints]

    def shorter_than(self, most: float) -> None:
        """Ask for a step of at most `most` units."""
        cost = np.concatenate(self.milp.columns["cost"])
        columns = np.flatnonzero(cost)
        self.milp.placed(1, (0, columns, cost[columns]), lb=-np.inf, ub=most)


def window_program(
    graph: Graph,
    linked: LinkedGraph,
    table: CutTable,
    ops: Sequence[int],
    unit_s: float,
    copies: CopiesWhole = "whole",
) -> WindowProgram | None:
    """The MILP of cuts at `ops`, which must ascend; its cost is the step time in units of `unit_s`.

    ``None`` where an op alone does not fit. O(cuts (ops + tensors + reads)) variables and rows, and
    for rule 6, of few ops where memory is tight, O(ops * tensors) non-zeros a window.
    """
    if any(table.rooms_bytes[op] < 0 for op in ops):
        return None
    builder = _WindowBuilder(graph, linked, table, unit_s, copies)
    builder.begin(ops[0])
    for op, following in zip(ops, [*ops[1:], graph.num_ops], strict=True):
        builder.window(op, following, builder.cut(op))
    builder.end()
    moments = builder.moments
    return WindowProgram(
        builder.milp, graph, table, moments[0::2], moments[1::2], builder.windows, builder.outs
    )


class _WindowBuilder:
    """Adds one cut, and one window, after the other."""

    def __init__(
        self,
        graph: Graph,
        linked: LinkedGraph,
        table: CutTable,
        unit_s: float,
        copies: CopiesWhole,
    ) -> None:
        arrays = graph.arrays
        self.copies = copies
        self.graph, self.arrays, self.table = graph, arrays, table
        self.times = arrays.op_time_s / unit_s
        self.out_times, self.back_times = linked.out_s / unit_s, linked.back_s / unit_s
        self.num_tensors, self.producer = arrays.tensor_bytes.size, arrays.tensor_producer
        self.byte_unit = float(max(1, table.budget_bytes))
        self.turns = np.arange(graph.num_ops)
        self.milp = Milp()
        self.outs: list[Ints] = []
        self.window_before: tuple[AtCut, Between] | None = None
        self.moments: list[AtCut] = []
        self.windows: list[Between] = []

    def begin(self, op: int) -> None:
        """The time before the first cut."""
        length = self.milp.variables(1, lb=math.fsum(self.times[:op].tolist()), ub=np.inf, cost=1.0)
        out = self._copies_out(self.producer < op, length)
        self._behind_first_runs(out, 0, op, length)

    def cut(self, op: int) -> AtCut:
        """The first run of `op`: its start, the time in between, and its end, which is returned."""
        milp, arrays, room = self.milp, self.arrays, int(self.table.rooms_bytes[op])
        own = np.zeros(self.num_tensors, dtype=np.bool_)
        own[self._reads(op)] = True
        known = self.producer < op
        start = self._at(op, known, own, known & ~own, room)
        if self.window_before is not None:
            before, passed = self.window_before
            self._carry(before, passed, start)
            self._beside(before, passed, start)
        made = self.producer == op
        solid = own | (made & ~arrays.tensor_optional)
        free = known & ~own | (made & arrays.tensor_optional & (arrays.tensor_takes_over < 0))
        length = milp.variables(1, lb=self.times[op], ub=self.times[op], cost=1.0)
        time = self._during(known, np.zeros(self.graph.num_ops, np.bool_), length)
        out = self._copies_out(known, length)
        place = np.flatnonzero(known)
        milp.rows(place.size, (out[place], 1.0), (start.here[place], -1.0))
        self._host(time, place, self.copies == "whole")
        end = self._at(op + 1, known | made, solid, free, room)
        self._carry(start, time, end)
        return end

    def window(self, op: int, following: int, moment: AtCut) -> None:
        """The time from `moment`, the end of the run of `op`, to the start of `following`."""
        milp, arrays = self.milp, self.arrays
        ran = self.turns <= op
        first = (self.turns > op) & (self.turns < following)
        least = math.fsum(self.times[first].tolist())
        length = milp.variables(1, lb=least, ub=np.inf, cost=1.0)
        time = self._during(moment.known, ran & ~arrays.op_once, length)
        milp.placed(1, (0, time.again, self.times), (0, length, -1.0), lb=-np.inf, ub=-least)
        made = (self.producer > op) & (self.producer < following)
        out = self._copies_out(moment.known | made, length)
        place = np.flatnonzero(moment.known)
        source = self._source(time)
        milp.rows(place.size, (out[place], 1.0), (moment.here[place], -1.0), (source[place], -1.0))
        self._host(time, place, self.copies != "shares")

        if following == self.graph.num_ops:
            needed = self.table.needed(first)
        else:
            needed = np.zeros(self.num_tensors, dtype=np.bool_)
            needed[arrays.read_tensor[first[self.table.readers]]] = True
        read = np.flatnonzero(needed & moment.known)
        milp.rows(
            read.size,
            (moment.here[read], 1.0),
            (time.back[read], 1.0),
            (source[read], 1.0),
            lb=1.0,
            ub=np.inf,
        )
        edges = np.flatnonzero(ran[self.table.readers])
        reader, read = self.table.readers[edges], arrays.read_tensor[edges]
        milp.rows(
            edges.size,
            (time.again[reader], 1.0),
            (moment.here[read], -1.0),
            (time.back[read], -1.0),
            (source[read], -1.0),
        )
        self.milp.rows(
            edges.size,
            (time.again[reader], 1.0),
            (moment.here[read], -1.0),
            (source[read], -1.0),
            *((earlier[read], -1.0) for earlier in self.outs[: moment.num_times]),
        )
        self._behind_first_runs(out, op + 1, following, length)
        self._before_first_runs(moment, time, op + 1, following)
        self.window_before = moment, time
        self.windows.append(time)

    def end(self) -> None:
        """Rule 9 at every moment, with what runs again in the windows behind it."""
        for moment in self.moments:
            needed = self.table.needed(self.turns >= moment.following)
            place = np.flatnonzero(needed & moment.known)
            self.milp.rows(
                place.size,
                (moment.here[place], 1.0),
                *((out[place], 1.0) for out in self.outs[: moment.num_times]),
                *((self._source(time)[place], 1.0) for time in self.windows[moment.num_windows :]),
                lb=1.0,
                ub=np.inf,
            )

    def _behind_first_runs(self, out: Ints, first: int, following: int, length: Ints) -> None:
        """Rule 10 for copies to the host, of the ops from `first` on in a time."""
        made = (self.producer >= first) & (self.producer < following)
        made &= self.arrays.tensor_bytes > 0
        times, place = self.times[first:following], np.flatnonzero(made)
        left = np.zeros(times.size + 1)
        left[2:] = np.cumsum(times[1:][::-1])
        add_deadlines(
            self.milp,
            following - self.producer[place],
            [(out[place], self.out_times[place])],
            np.zeros(place.size),
            left - times.sum(),
            [(int(length[0]), -1.0)],
        )

    def _before_first_runs(self, moment: AtCut, time: Between, first: int, following: int) -> None:
        """Rule 10 for copies back, of the ops from `first` on in a window."""
        read_at = self.table.first_readers(first - 1)
        soon = moment.known & (read_at < following) & (self.arrays.tensor_bytes > 0)
        times, place = self.times[first:following], np.flatnonzero(soon)
        until = np.concatenate([[0.0], np.cumsum(times)])
        back = self.back_times[place]
        add_deadlines(
            self.milp,
            read_at[place] - first,
            [(moment.here[place], -back), (self._source(time)[place], -back)],
            back,
            until - times.sum(),
            [(int(time.length[0]), -1.0)],
        )

    def _at(self, following: int, known: Bools, given: Bools, charged: Bools, room: int) -> AtCut:
        """A moment at which `given` is on the device, and `charged` must fit into `room` bytes."""
        hold = self.milp.variables(self.num_tensors, lb=given, ub=known, integral=True)
        here = self.milp.variables(self.num_tensors, lb=given, ub=known)
        self.milp.rows(self.num_tensors, (here, 1.0), (hold, -1.0))
        place = np.flatnonzero(charged & (self.arrays.tensor_bytes > 0))
        sizes = self.arrays.tensor_bytes[place] / self.byte_unit
        most = room / self.byte_unit * _WIDER
        self.milp.placed(1, (0, hold[place], sizes), lb=-np.inf, ub=most)
        moment = AtCut(known, here, hold, following, len(self.outs), len(self.windows))
        self.moments.append(moment)
        return moment

    def _during(self, known: Bools, may_run: Bools, length: Ints) -> Between:
        """What may run again and come back in a time."""
        again = np.full(self.graph.num_ops, -1, dtype=np.int64)
        again[may_run] = self.milp.variables(int(may_run.sum()), integral=True)
        back = self.milp.variables(self.num_tensors, ub=known)
        self.milp.placed(1, (0, back, self.back_times), (0, length, -1.0), lb=-np.inf, ub=0.0)
        return Between(again, back, length)

    def _copies_out(self, may: Bools, length: Ints) -> Ints:
        out = self.milp.variables(self.num_tensors, ub=may)
        self.milp.placed(1, (0, out, self.out_times), (0, length, -1.0), lb=-np.inf, ub=0.0)
        self.outs.append(out)
        return out

    def _host(self, time: Between, place: Ints, whole: bool) -> None:
        """Rule 4: what comes back is complete on the host."""
        there = self.milp.variables(place.size, integral=whole)
        parts = [(out[place], -1.0) for out in self.outs]
        self.milp.rows(place.size, (there, 1.0), *parts)
        self.milp.rows(place.size, (time.back[place], 1.0), (there, -1.0))

    def _source(self, time: Between) -> Ints:
        """The column of the producer's repeated run, for each tensor."""
        return np.where(self.producer >= 0, time.again[np.maximum(self.producer, 0)], -1)

    def _carry(self, before: AtCut, time: Between, after: AtCut) -> None:
        """Rule 2."""
        place = np.flatnonzero(before.known)
        self.milp.rows(
            place.size,
            (after.here[place], 1.0),
            (before.here[place], -1.0),
            (time.back[place], -1.0),
            (self._source(time)[place], -1.0),
        )

    def _beside(self, before: AtCut, time: Between, after: AtCut) -> None:
        """Rules 6 to 8 for the window between two moments."""
        milp, sizes = self.milp, self.arrays.tensor_bytes
        place = np.flatnonzero(before.known & (sizes > 0))
        rows = []
        for again in np.flatnonzero(time.again >= 0).tolist():
            own = np.zeros(self.num_tensors, dtype=np.bool_)
            own[self._reads(again)] = own[self._writes(again)] = True
            others = place[~own[place]]
            made, more = self._largest(again)
            if int(sizes[others].sum()) + more > self.table.rooms_bytes[again]:
                rows.append((again, others, made, more))
        if not rows:
            return
        stays = np.full(self.num_tensors, -1, dtype=np.int64)
        stays[place] = milp.variables(place.size)
        milp.rows(
            place.size,
            (before.hold[place], 1.0),
            (after.here[place], 1.0),
            (time.back[place], -1.0),
            (self._source(time)[place], -1.0),
            (stays[place], -1.0),
            ub=1.0,
        )
        for again, others, made, more in rows:
            room, runs = int(self.table.rooms_bytes[again]), time.again[[again]]
            makes = np.full(1, -1, dtype=np.int64)
            if made >= 0:
                makes = milp.variables(1, integral=True)
                milp.rows(
                    1,
                    (after.here[[made]], 1.0),
                    (before.here[[made]], -1.0),
                    (time.back[[made]], -1.0),
                    (makes, -1.0),
                )
            # Without the repeated run, the row constrains nothing.
            slack = int(sizes[others].sum()) + more - room
            milp.placed(
                1,
                (0, stays[others], sizes[others] / self.byte_unit),
                (0, makes, more / self.byte_unit),
                (0, runs, slack / self.byte_unit),
                lb=-np.inf,
                ub=(room + slack) / self.byte_unit * _WIDER,
            )
            self._one_by_one(time, runs, again, others[sizes[others] > room])
            if made >= 0:
                barred = others[sizes[others] > room - more]
                self._one_by_one(time, makes, again, barred[sizes[barred] <= room])
                self._comes_back(after, time, makes, made, barred)

    def _largest(self, op: int) -> tuple[int, int]:
        """The largest output of `op`, an optional one first, and what it adds to the own bytes."""
        arrays = self.arrays
        writes = self._writes(op)
        writes = writes[arrays.tensor_takes_over[writes] < 0]
        if not writes.size:
            return -1, 0
        sizes = arrays.tensor_bytes[writes]
        optional = arrays.tensor_optional[writes] & (sizes > 0)
        made = int(writes[np.argmax(np.where(optional, sizes + sizes.max() + 1, sizes))])
        return made, int(arrays.tensor_bytes[made]) if arrays.tensor_optional[made] else 0

    def _one_by_one(self, time: Between, runs: Ints, op: int, tensors: Ints) -> None:
        """Rule 7: the run of `op`, if it is made, and the copies of each of the tensors."""
        num = tensors.size
        self.milp.rows(
            num,
            (np.full(num, runs[0]), self.times[op]),
            (self.outs[-1][tensors], self.out_times[tensors]),
            (time.back[tensors], self.back_times[tensors]),
            (np.full(num, time.length[0]), -1.0),
        )

    def _comes_back(
        self, after: AtCut, time: Between, makes: Ints, made: int, others: Ints
    ) -> None:
        """Rule 8: of `others`, which do not fit beside the run that makes the tensor `made`."""
        arrays = self.arrays
        kept = []
        for other in others.tolist():
            maker = int(self.producer[other])
            if maker < 0 or time.again[maker] < 0:
                kept.append(other)
                continue
            own = {*self._reads(maker).tolist(), *self._writes(maker).tolist()}
            beside = int(arrays.tensor_bytes[made])
            beside += int(arrays.tensor_bytes[other]) if arrays.tensor_optional[other] else 0
            if made not in own and beside > self.table.rooms_bytes[maker]:
                kept.append(other)
        place = np.array(kept, dtype=np.int64)
        self.milp.rows(
            place.size,
            (after.here[place], 1.0),
            (np.full(place.size, makes[0]), 1.0),
            (time.back[place], -1.0),
            ub=1.0,
        )

    def _reads(self, op: int) -> Ints:
        arrays = self.arrays
        return arrays.read_tensor[arrays.read_start[op] : arrays.read_start[op + 1]]

    def _writes(self, op: int) -> Ints:
        arrays = self.arrays
        return arrays.write_tensor[arrays.write_start[op] : arrays.write_start[op + 1]]
