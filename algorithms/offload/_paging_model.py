"""The staged programme of `checkmate` with paging: copies as flows on two links beside the runs.

Stages and runs are those of ``graphs/_staged_model.py``; stage s lasts ``D[s]``, at least as long
as its runs, and as what flows on either link in it. Of every tensor w that may be copied:

- ``out[s, w]``: share of it that flows to the host in stage s, while it lies on the device from
  before the end of the stage's runs to the end of the stage; ``gone[s, w]`` is the sum so far, and
  ``there[s, w]`` (binary) says that all of it is on the host when stage s begins;
- ``hold[s, w]`` (binary): the host has room for it in stage s, and keeps it;
- ``buffer[s, w]`` (binary): the device has room for it in stage s, in which ``back[s, w]`` of it
  flows in; ``come[s, w]`` is the sum while the buffer stands, and ``lands[s, w]`` (binary) says
  that it is all there, and alive, when the next stage begins.

POET (Patil et al. 2022) pages whole tensors between two stages, and adds the time of paging or
weighs its energy; flows that last several stages are what two links beside a device can do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schedsim.graph import Graph

from ..graphs._programme import Floats, Ints, Programme
from ..graphs._staged_model import add_stage, chains_of, sizes_of, stages_of
from ._timeline import Step

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class PagingModel:
    """The programme, and where its variables are.

    Attributes
    ----------
    programme : Programme
    tensors : (num_copied,) int64
        Those that may be copied.
    run, out, gone, buffer, lands : list of arrays
        By stage.
    """

    programme: Programme
    tensors: Ints
    run: list[Ints]
    out: list[Ints]
    gone: list[Ints]
    buffer: list[Ints]
    lands: list[Ints]

    def tokens(self, graph: Graph, x: Floats) -> list[int]:
        """The runs and copies of a solution, as tokens of ``_timeline``.

        A copy out stands behind the last run before it begins to flow, one back behind the first
        run of the stage in which it does.
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
    graph: Graph, step: Step, byte_unit: float, room: float, unit_s: float, host_room: float
) -> PagingModel:
    """The programme for `graph`; times in units of `unit_s`, `room` and `host_room` in bytes units.

    O(ops (ops + tensors + reads)) variables, rows and non-zeros.
    """
    arrays = graph.arrays
    chains, sizes = chains_of(graph), sizes_of(graph, byte_unit)
    tensors = _worth_copying(graph, step)
    num = tensors.size
    bytes_ = sizes.tensor[tensors]
    times = arrays.op_time_s / unit_s
    out_times, back_times = step.out_s[tensors] / unit_s, step.back_s[tensors] / unit_s
    programme = Programme()
    first, turns = stages_of(graph, 1)
    kept = np.full(sizes.tensor.size, -1, dtype=np.int64)
    inputs = np.flatnonzero(arrays.tensor_producer < 0)
    kept[inputs] = programme.variables(inputs.size, lb=1.0)
    model = PagingModel(programme, tensors, [], [], [], [], [])
    nothing = np.full(num, -1, dtype=np.int64)
    gone = come = there = hold = buffer = nothing
    limited = host_room < bytes_.sum()
    for s, (op_first, num_turns) in enumerate(zip(first, turns, strict=True)):
        before_buffer = buffer
        buffer = programme.variables(num, integral=True, ub=1.0 if s else 0.0)
        is_last = s == len(first) - 1
        run, after = add_stage(
            programme,
            graph,
            chains,
            sizes,
            room,
            np.zeros(graph.num_ops),
            op_first,
            num_turns,
            kept,
            arrays.tensor_result if is_last else None,
            (buffer, bytes_),
        )
        lasts = int(programme.variables(1, ub=np.inf, cost=1.0)[0])
        programme.placed(
            1, (0, run, times[:num_turns]), (0, np.array([lasts]), -1.0), lb=-np.inf, ub=0.0
        )

        out, back = programme.variables(num), programme.variables(num)
        programme.placed(1, (0, out, out_times), (0, np.array([lasts]), -1.0), lb=-np.inf, ub=0.0)
        programme.placed(1, (0, back, back_times), (0, np.array([lasts]), -1.0), lb=-np.inf, ub=0.0)
        # What flows out lies on the device to the end of the stage.
        programme.rows(num, (out, 1.0), (after[tensors], -1.0))
        before_gone, gone = gone, programme.variables(num)
        programme.rows(num, (gone, 1.0), (before_gone, -1.0), (out, -1.0))
        before_hold, hold = (
            hold,
            programme.variables(num, integral=limited, lb=0.0 if limited else 1.0),
        )
        programme.rows(num, (gone, 1.0), (hold, -1.0))
        if limited:
            programme.placed(1, (0, hold, bytes_), lb=-np.inf, ub=host_room)
        # What flows back was all there when the stage began, and stays while it flows.
        before_there, there = there, programme.variables(num, integral=True, ub=1.0 if s else 0.0)
        programme.rows(num, (there, 1.0), (before_gone, -1.0))
        programme.rows(num, (there, 1.0), (hold, -1.0))
        programme.rows(num, (back, 1.0), (there, -1.0))
        programme.rows(num, (back, 1.0), (buffer, -1.0))
        before_come, come = come, programme.variables(num)
        programme.rows(num, (come, 1.0), (before_come, -1.0), (back, -1.0))
        programme.rows(num, (come, 1.0), (buffer, -1.0))
        lands = programme.variables(num, integral=True, ub=0.0 if is_last else 1.0)
        programme.rows(num, (lands, 1.0), (come, -1.0))
        # A buffer is taken up anew after it has landed.
        if s:
            programme.rows(num, (come, 1.0), (model.lands[-1], 1.0), ub=1.0)
        del before_buffer, before_hold, before_there
        kept = after
        if not is_last:
            kept = after.copy()
            kept[tensors] = programme.variables(num)
            programme.rows(num, (kept[tensors], 1.0), (after[tensors], -1.0), (lands, -1.0))
        for rows, columns in (
            (model.run, run),
            (model.out, out),
            (model.gone, gone),
            (model.buffer, buffer),
            (model.lands, lands),
        ):
            rows.append(columns)
    return model


def _worth_copying(graph: Graph, step: Step) -> Ints:
    """Tensors of some bytes between whose uses something else runs, gradients left out."""
    arrays = graph.arrays
    readers = np.repeat(np.arange(graph.num_ops), np.diff(arrays.read_start))
    last = np.full(arrays.tensor_bytes.size, -1, dtype=np.int64)
    np.maximum.at(last, arrays.read_tensor, readers)
    apart = last - arrays.tensor_producer > 2
    known = arrays.tensor_producer < 0
    forward = known | (arrays.op_phase[np.maximum(arrays.tensor_producer, 0)] == 0)
    return np.flatnonzero(apart & forward & (step.size > 0))
