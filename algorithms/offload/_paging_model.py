"""The staged MILP of `checkmate` with paging: copies as flows on two links beside the runs.

Stages and runs are those of ``graphs/_staged_model.py``, with a pause between two stages in which
nothing runs. Stage s lasts at least as long as its runs, and at least as long as the flows on
either link in it; the same holds for a pause. For every tensor w that may be copied there are:

- ``out[s, w]``: the share of the tensor that flows to the host in stage s, while it lies on the
  device from before the end of the stage's runs to the end of the stage; ``gone[s, w]`` is the sum
  so far, and ``there[s, w]`` (binary) says that all of it is on the host when stage s begins;
- ``hold[s, w]`` (binary): the host has room for the tensor in stage s, and keeps it;
- ``buffer[s, w]`` (binary): the device has room for the tensor in stage s, in which the share
  ``back[s, w]`` flows in; ``come[s, w]`` is the sum while the buffer stands, and ``lands[s, w]``
  (binary) says that all of it is there, and alive, when the next stage begins.

POET (Patil et al. 2022) pages whole tensors between two stages, and adds the time of paging or
weighs its energy; flows that last several stages are what two links beside a device can do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schedsim.dataflow.graph import Graph

from ..graphs._milp import Floats, Ints, Milp
from ..graphs._staged_model import OneStage, StagedGraph, add_stage, stages_of
from ._timeline import LinkedGraph

# The cost of a second of copying, in seconds, so that of two equally fast answers the one with
# fewer copies is better.
_COPY_COST = 1e-5


@dataclass(frozen=True)
class PagingModel:
    """The MILP, and the indices of its variables.

    Attributes
    ----------
    milp : Milp
    tensors : (num_copied,) int64
        Tensors that may be copied.
    run, out, gone, buffer, lands : list of arrays
        Indices of variables of the MILP, an array for each stage.
    """

    milp: Milp
    tensors: Ints
    run: list[Ints]
    out: list[Ints]
    gone: list[Ints]
    buffer: list[Ints]
    lands: list[Ints]

    def tokens(self, graph: Graph, x: Floats) -> list[int]:
        """The runs and copies of a solution, as tokens of ``_timeline``.

        A copy to the host stands behind the last run before it begins to flow; a copy back stands
        behind the first run of the stage in which it begins to flow.
        """
        num_ops, num_tensors = graph.num_ops, graph.arrays.tensor_bytes.size
        arrays = graph.arrays
        tokens: list[int] = []
        on_host: set[int] = set()
        coming: set[int] = set()
        for s, run in enumerate(self.run):
            ops = np.flatnonzero(x[run] > 0.5).tolist()
            outs = set()
            for w, column in zip(self.tensors.tolist(), self.out[s].tolist(), strict=True):
                if x[column] > 1e-6 and w not in on_host and _all_goes(self.gone, x, s, w, self):
                    outs.add(w)
                    on_host.add(w)
            backs = []
            for place, w in enumerate(self.tensors.tolist()):
                if x[self.buffer[s][place]] < 0.5:
                    coming.discard(w)
                elif w not in coming and _all_comes(self, x, s, place):
                    coming.add(w)
                    backs.append(num_ops + num_tensors + w)
                if x[self.lands[s][place]] > 0.5:
                    coming.discard(w)
            writes = {
                int(w): op
                for op in ops
                for w in arrays.write_tensor[arrays.write_start[op] : arrays.write_start[op + 1]]
            }
            tokens += [num_ops + w for w in sorted(outs) if w not in writes]
            if not ops:
                tokens += backs
            for k, op in enumerate(ops):
                tokens.append(op)
                tokens += [num_ops + w for w in sorted(outs) if writes.get(w) == op]
                if k == 0:
                    tokens += backs
        return tokens


def _all_goes(gone: list[Ints], x: Floats, s: int, w: int, model: PagingModel) -> bool:
    place = int(np.flatnonzero(model.tensors == w)[0])
    return any(x[columns[place]] > 1 - 1e-6 for columns in gone[s:])


def _all_comes(model: PagingModel, x: Floats, s: int, place: int) -> bool:
    """Whether the tensor that a buffer takes up from stage `s` on lands."""
    for k in range(s, len(model.buffer)):
        if x[model.buffer[k][place]] < 0.5:
            return False
        if x[model.lands[k][place]] > 0.5:
            return True
    return False


def build_paging_model(
    graph: Graph,
    linked: LinkedGraph,
    byte_unit: float,
    room: float,
    unit_s: float,
    host_room: float,
) -> PagingModel:
    """The MILP for `graph`; times in units of `unit_s`, `room` and `host_room` in byte units.

    O(ops (ops + tensors + reads)) variables, rows and non-zeros.
    """
    builder = _PagingBuilder(graph, linked, byte_unit, room, unit_s, host_room)
    first, turns = stages_of(graph, 1)
    for s, (first_op, num_turns) in enumerate(zip(first, turns, strict=True)):
        if s:
            builder.pause()
        builder.stage(first_op, num_turns, is_last=s == len(first) - 1)
    return builder.model


class _PagingBuilder:
    """Builds the MILP one stage, or one pause, after the other."""

    def __init__(
        self,
        graph: Graph,
        linked: LinkedGraph,
        byte_unit: float,
        room: float,
        unit_s: float,
        host_room: float,
    ) -> None:
        self.staged = StagedGraph.of(graph, byte_unit, room)
        self.sizes, self.room, self.host_room = self.staged.sizes, room, host_room
        self.tensors = _worth_copying(graph, linked)
        self.bytes = self.sizes.tensor[self.tensors]
        self.op_times = graph.arrays.op_time_s / unit_s
        self.out_times = linked.out_s[self.tensors] / unit_s
        self.back_times = linked.back_s[self.tensors] / unit_s
        self.milp = Milp()
        self.model = PagingModel(self.milp, self.tensors, [], [], [], [], [])
        # Variables "alive when the next stage begins"; -1 for no variable, which stands for zero.
        self.kept = self.staged.inputs_alive(self.milp)
        nothing = np.full(self.tensors.size, -1, dtype=np.int64)
        self.gone = self.come = nothing
        self.limited = host_room < self.bytes.sum()

    def stage(self, first_op: int, num_turns: int, *, is_last: bool) -> None:
        """Add the stage of the first run of `first_op`, behind repeats of earlier ops."""
        buffer = self._buffers()
        stage = OneStage(first_op, num_turns, self.kept, is_last)
        free = np.zeros(self.op_times.size)  # runs cost nothing here: the stage's time has them
        run, after = add_stage(self.milp, self.staged, stage, free, (buffer, self.bytes))
        self._flow(run, self.op_times[:num_turns], after, buffer, is_last=is_last)

    def pause(self) -> None:
        """Add a pause, in which nothing runs and copies may flow."""
        buffer = self._buffers()
        after = np.full(self.kept.size, -1, dtype=np.int64)
        alive = np.flatnonzero(self.kept >= 0)
        after[alive] = self.milp.variables(alive.size)
        self.milp.rows(alive.size, (after[alive], 1.0), (self.kept[alive], -1.0))
        self.milp.placed(
            1,
            (0, after[alive], self.sizes.tensor[alive]),
            (0, buffer, self.bytes),
            lb=-np.inf,
            ub=self.room,
        )
        self._flow(np.empty(0, dtype=np.int64), np.empty(0), after, buffer, is_last=False)

    def _buffers(self) -> Ints:
        some = 1.0 if self.model.run else 0.0
        return self.milp.variables(self.tensors.size, integral=True, ub=some)

    def _flow(self, run: Ints, times: Floats, after: Ints, buffer: Ints, *, is_last: bool) -> None:
        """Add the flows in a stage with these runs, and the variables alive behind it."""
        milp, num = self.milp, self.tensors.size
        lasts = milp.variables(1, ub=np.inf, cost=1.0)
        out = milp.variables(num, cost=_COPY_COST * self.out_times)
        back = milp.variables(num, cost=_COPY_COST * self.back_times)
        for columns, each in ((run, times), (out, self.out_times), (back, self.back_times)):
            milp.placed(1, (0, columns, each), (0, lasts, -1.0), lb=-np.inf, ub=0.0)
        # A tensor that flows out lies on the device to the end of the stage.
        milp.rows(num, (out, 1.0), (after[self.tensors], -1.0))
        gone = milp.variables(num)
        milp.rows(num, (gone, 1.0), (self.gone, -1.0), (out, -1.0))
        some = 1.0 if self.model.run else 0.0
        there = milp.variables(num, integral=True, ub=some)
        milp.rows(num, (there, 1.0), (self.gone, -1.0))
        if self.limited:
            hold = milp.variables(num, integral=True)
            milp.rows(num, (gone, 1.0), (hold, -1.0))
            milp.rows(num, (there, 1.0), (hold, -1.0))
            milp.placed(1, (0, hold, self.bytes), lb=-np.inf, ub=self.host_room)
        # A tensor that flows back was all on the host when the stage began; half a tensor is
        # useless.
        milp.rows(num, (back, 1.0), (there, -1.0))
        come = milp.variables(num)
        milp.rows(num, (come, 1.0), (self.come, -1.0), (back, -1.0))
        milp.rows(num, (come, 1.0), (buffer, -1.0))
        lands = milp.variables(num, integral=True, ub=0.0 if is_last else 1.0)
        milp.rows(num, (lands, 1.0), (come, -1.0))
        if self.model.lands:  # a buffer is taken up anew behind a landing
            milp.rows(num, (come, 1.0), (self.model.lands[-1], 1.0), ub=1.0)
        self.kept = after
        if not is_last:
            self.kept = after.copy()
            self.kept[self.tensors] = milp.variables(num)
            milp.rows(
                num, (self.kept[self.tensors], 1.0), (after[self.tensors], -1.0), (lands, -1.0)
            )
        self.gone, self.come = gone, come
        for rows, columns in (
            (self.model.run, run),
            (self.model.out, out),
            (self.model.gone, gone),
            (self.model.buffer, buffer),
            (self.model.lands, lands),
        ):
            rows.append(columns)


def _worth_copying(graph: Graph, linked: LinkedGraph) -> Ints:
    """Tensors of some bytes between whose uses other ops run, gradients excluded."""
    arrays = graph.arrays
    readers = np.repeat(np.arange(graph.num_ops), np.diff(arrays.read_start))
    last = np.full(arrays.tensor_bytes.size, -1, dtype=np.int64)
    np.maximum.at(last, arrays.read_tensor, readers)
    apart = last - arrays.tensor_producer > 2
    known = arrays.tensor_producer < 0
    forward = known | (arrays.op_phase[np.maximum(arrays.tensor_producer, 0)] == 0)
    return np.flatnonzero(apart & forward & (linked.size > 0))
