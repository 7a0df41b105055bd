"""The staged mixed-integer linear program (MILP) behind `checkmate`, as sparse matrices.

The step is cut into stages, each of which ends with the first run of one op. Within a stage every
op runs at most once, in the graph's order. Variables:

- ``R[s, i]``: op i runs in stage s (binary).
- a chain of ``alive[s, w, e]`` for every tensor w: the tensor is alive in stage s while its
  producer runs (e = 0), from then to the end of its first reader's turn (e = 1), to the end of its
  second reader's turn, and so on; the last element reaches into the next stage, where it is
  Checkmate's S.
- ``U[s, i]``: bytes alive at op i's turn, as a running sum.

Op i's *turn* in a stage is its place in the graph's order there, whether the op runs or not.
Checkmate frees a tensor with products FREE of binaries, linearised by counting hazards. A chain
that may only fall, and must not fall before a reader runs, has the same integer points and no large
constants, so that its linear relaxation is tighter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph

from ._milp import Floats, Ints, Milp


@dataclass(frozen=True)
class Chains:
    """The turns at which the life of each tensor may end, flattened; tensors in graph order.

    Attributes
    ----------
    tensor : (num_elements,) int64
    turn : (num_elements,) int64
        The op after whose turn the element before it may end: the producer for the first two
        elements (-1 for a graph input), then each reader.
    begin : (num_elements,) int64
        The turn from which on the element counts.
    position : (num_elements,) int64
        Place of the element in its tensor's chain.
    """

    tensor: Ints
    turn: Ints
    begin: Ints
    position: Ints


def chains_of(graph: Graph) -> Chains:
    """The chains of all tensors that are read or are results or are written; O(reads)."""
    arrays = graph.arrays
    num_tensors = arrays.tensor_bytes.size
    num_reads = np.diff(arrays.read_start)
    readers = np.repeat(np.arange(graph.num_ops), num_reads)
    producer = arrays.tensor_producer
    everything = np.arange(num_tensors)
    tensor = np.concatenate([everything, everything, arrays.read_tensor])
    turn = np.concatenate([producer, producer, readers])
    begin = np.concatenate([producer, producer + 1, readers + 1])
    order = np.lexsort((begin, tensor))
    tensor, turn, begin = tensor[order], turn[order], begin[order]
    start = np.searchsorted(tensor, everything)
    return Chains(tensor, turn, begin, np.arange(tensor.size) - start[tensor])


@dataclass(frozen=True)
class StagedModel:
    """The MILP, and the indices of its variables.

    Attributes
    ----------
    milp : Milp
    stage_first_op : list of int
        The op that each stage runs for the first time; -1 for a stage of recomputations alone.
    stage_num_turns : list of int
        In stage s the ops 0 .. stage_num_turns[s] - 1 have a turn.
    run_offset : list of int
        Index of ``R[s, 0]``.
    kept : list of (num_tensors,) int64
        Index of the variable "alive at the start of stage s", with one entry more than stages; -1
        for none.
    """

    milp: Milp
    stage_first_op: list[int]
    stage_num_turns: list[int]
    run_offset: list[int]
    kept: list[Ints]

    def runs(self, x: NDArray[np.float64]) -> list[int]:
        """The op sequence of a solution, rounded."""
        found: list[int] = []
        for offset, turns in zip(self.run_offset, self.stage_num_turns, strict=True):
            found += np.flatnonzero(x[offset : offset + turns] > 0.5).tolist()
        return found


def stages_of(graph: Graph, passes: int) -> tuple[list[int], list[int]]:
    """(first op, number of turns) of each stage."""
    first, turns = [], []
    for op in range(graph.num_ops):
        first += [-1] * (passes - 1 if op else 0) + [op]
        turns += [op] * (passes - 1 if op else 0) + [op + 1]
    arrays = graph.arrays
    if bool(np.any(arrays.tensor_result & (arrays.tensor_producer >= 0))):
        # A result may be dropped and recomputed after the last first run.
        first += [-1] * passes
        turns += [graph.num_ops] * passes
    return first, turns


def num_variables(graph: Graph, passes: int) -> int:
    """About how many variables the model has: O(passes ops (ops + tensors + reads) / 2)."""
    arrays = graph.arrays
    per_stage = 2 * graph.num_ops + 2 * arrays.tensor_bytes.size + arrays.read_tensor.size
    return passes * (graph.num_ops + 1) * per_stage // 2


@dataclass(frozen=True)
class StagedSizes:
    """Sizes of the graph in byte units, and what its ops do beyond reading and writing."""

    tensor: Floats
    workspace: Floats
    saving_delta: Floats  # workspace of a run that keeps a bundle, less that of a run that does not
    earns: NDArray[np.bool_]  # whether keeping the bundle makes a workspace smaller
    takes: Ints  # outputs that may take over storage
    charged: NDArray[np.bool_]  # whether the op charges more than its outputs


def sizes_of(graph: Graph, byte_unit: float) -> StagedSizes:
    """The sizes that the MILP needs of `graph`, in units of `byte_unit`."""
    arrays = graph.arrays
    optional = np.flatnonzero(arrays.tensor_optional)
    has_optional = np.zeros(graph.num_ops, dtype=np.bool_)
    has_optional[arrays.tensor_producer[optional]] = True
    more = arrays.op_saving_workspace_bytes - arrays.op_workspace_bytes
    delta = np.where(has_optional, more, 0) / byte_unit
    earns = np.zeros(arrays.tensor_bytes.size, dtype=np.bool_)
    earns[optional] = delta[arrays.tensor_producer[optional]] < 0
    takes = np.flatnonzero(arrays.tensor_takes_over >= 0)
    charged = (arrays.op_workspace_bytes != 0) | (delta != 0)
    charged[arrays.tensor_producer[takes]] = True
    return StagedSizes(
        arrays.tensor_bytes / byte_unit,
        arrays.op_workspace_bytes / byte_unit,
        delta,
        earns,
        takes,
        charged,
    )


@dataclass(frozen=True)
class StagedGraph:
    """The data that all stages of a model share: the graph, its chains and sizes, the room."""

    graph: Graph
    chains: Chains
    sizes: StagedSizes
    room: float

    @classmethod
    def of(cls, graph: Graph, byte_unit: float, room: float) -> StagedGraph:
        """`graph` with sizes in units of `byte_unit`."""
        return cls(graph, chains_of(graph), sizes_of(graph, byte_unit), room)

    def inputs_alive(self, milp: Milp) -> Ints:
        """Variables "alive when the step starts", by tensor: the graph's inputs."""
        kept = np.full(self.sizes.tensor.size, -1, dtype=np.int64)
        inputs = np.flatnonzero(self.graph.arrays.tensor_producer < 0)
        kept[inputs] = milp.variables(inputs.size, lb=1.0)
        return kept


@dataclass(frozen=True)
class OneStage:
    """One stage: ops ``0 .. num_turns - 1`` have a turn, the last of them its first run.

    Attributes
    ----------
    first_op
        The op that runs for the first time; -1 for a stage of recomputations alone.
    kept
        Variable "alive when the stage starts" of each tensor; -1 for none, which stands for zero.
    is_last
        Whether exactly the results must be alive when the stage ends.
    """

    first_op: int
    num_turns: int
    kept: Ints
    is_last: bool


def build_model(
    graph: Graph, room: float, byte_unit: float, times: NDArray[Any], *, passes: int = 1
) -> StagedModel:
    """The MILP for `graph`.

    Parameters
    ----------
    room
        Budget less static bytes, in byte units.
    byte_unit
        Bytes per unit; sizes are divided by it as floats.
    times
        Cost of a repeated run of each op, shape ``(num_ops,)``, in any unit.
    passes
        Rounds of recomputation before each first run.

    Notes
    -----
    O(passes ops (ops + tensors + reads)) variables, rows and non-zeros.
    """
    staged = StagedGraph.of(graph, byte_unit, room)
    milp = Milp()
    first, turns = stages_of(graph, passes)
    kept = staged.inputs_alive(milp)
    all_kept, run_offset = [kept], []
    for first_op, num_turns in zip(first, turns, strict=True):
        stage = OneStage(first_op, num_turns, kept, is_last=len(all_kept) == len(first))
        run, kept = add_stage(milp, staged, stage, times)
        run_offset.append(int(run[0]))
        all_kept.append(kept)
    return StagedModel(
        milp=milp,
        stage_first_op=first,
        stage_num_turns=turns,
        run_offset=run_offset,
        kept=all_kept,
    )


def add_stage(
    milp: Milp,
    staged: StagedGraph,
    stage: OneStage,
    times: NDArray[Any],
    reserved: tuple[Ints, Floats] | None = None,
) -> tuple[Ints, Ints]:
    """Add one stage; returns the indices of its runs, and of the variables alive at its end.

    `times` is the cost of a repeated run of each op. `reserved` are variables, and the byte units
    of each, that take room during the whole stage.
    """
    arrays, chains, sizes, room = staged.graph.arrays, staged.chains, staged.sizes, staged.room
    num_turns, kept = stage.num_turns, stage.kept
    turns = np.arange(num_turns)
    is_first = turns == stage.first_op
    run = milp.variables(
        num_turns,
        lb=is_first,
        ub=is_first | ~arrays.op_once[:num_turns],
        cost=np.where(is_first, 0.0, times[:num_turns]),
        integral=True,
    )
    # Bytes of tensors alive at each turn.
    live = milp.variables(
        num_turns, ub=np.where(sizes.charged[:num_turns], np.inf, room), lb=-np.inf
    )
    there = np.flatnonzero(chains.turn < num_turns)
    tensor, turn = chains.tensor[there], chains.turn[there]
    position, begin = chains.position[there], chains.begin[there]
    is_last = np.ones(tensor.size, dtype=np.bool_)
    is_last[:-1] = tensor[1:] != tensor[:-1]
    lb = ub = None
    if stage.is_last:
        lb = is_last & arrays.tensor_result[tensor]
        ub = ~is_last | arrays.tensor_result[tensor]
    alive = milp.variables(
        there.size,
        lb=0.0 if lb is None else lb,
        ub=1.0 if ub is None else ub,
        integral=sizes.earns[tensor] & (position == 1),
    )
    before = np.where(position > 0, alive - 1, kept[tensor])
    made = (position == 0) & (turn >= 0)
    producing = np.where(made, run[np.maximum(turn, 0)], -1)

    # A chain may only fall, except at the run of its producer.
    milp.rows(there.size, (alive, 1.0), (before, -1.0), (producing, -1.0))
    # Outputs that are not optional exist at least while their producer runs.
    solid = made & ~arrays.tensor_optional[tensor]
    milp.rows(int(solid.sum()), (producing[solid], 1.0), (alive[solid], -1.0))
    # It must not fall before a reader that runs.
    reads = position >= 2
    milp.rows(int(reads.sum()), (run[turn[reads]], 1.0), (before[reads], -1.0))

    # A bundle that earns a smaller workspace falls only behind a reader, not by being written
    # again.
    owed = reads & sizes.earns[tensor]
    milp.rows(int(owed.sum()), (before[owed], 1.0), (alive[owed], -1.0), (run[turn[owed]], -1.0))
    owed = (position == 1) & sizes.earns[tensor]
    was, again = kept[tensor[owed]], run[turn[owed]]
    milp.rows(int(owed.sum()), (was, 1.0), (again, 1.0), ub=1.0)
    milp.rows(int(owed.sum()), (was, 1.0), (alive[owed], -1.0))
    if not sizes.earns.any():
        # A repeated run of which nothing is kept is useless.
        again_of = np.where(position == 1, turn, -1)
        place = np.flatnonzero(again_of >= 0)
        milp.placed(
            num_turns,
            (turns, np.where(is_first, -1, run), 1.0),
            (turn[place], np.where(turn[place] == stage.first_op, -1, alive[place]), -1.0),
            lb=-np.inf,
            ub=0.0,
        )

    counted = begin < num_turns
    at, size = np.maximum(begin[counted], 0), sizes.tensor[tensor[counted]]
    milp.placed(
        num_turns,
        (turns, live, 1.0),
        (turns[1:], live[:-1], -1.0),
        (at, alive[counted], -size),
        (at, before[counted], size),
        (0, kept, -sizes.tensor),
        lb=0.0,
        ub=0.0,
    )
    extra = _add_extras(milp, staged, run, alive, tensor, turn, position)
    charged = np.flatnonzero(sizes.charged[:num_turns] | (reserved is not None))
    row_of = np.zeros(num_turns, dtype=np.int64)
    row_of[charged] = np.arange(charged.size)
    milp.placed(
        charged.size,
        (row_of[charged], live[charged], 1.0),
        (row_of[charged], run[charged], sizes.workspace[charged]),
        *((row_of[ops], columns, values) for ops, columns, values in extra),
        *_beside(charged.size, reserved),
        lb=-np.inf,
        ub=room,
    )
    kept = np.full(kept.size, -1, dtype=np.int64)
    kept[tensor[is_last]] = alive[is_last]
    return run, kept


def _beside(num_rows: int, reserved: tuple[Ints, Floats] | None) -> list[tuple[Ints, Ints, Floats]]:
    """Terms (rows, variables, bytes) of the variables that take room at every turn."""
    if reserved is None:
        return []
    columns, sizes = reserved
    rows = np.repeat(np.arange(num_rows), columns.size)
    return [(rows, np.tile(columns, num_rows), np.tile(sizes, num_rows))]


def _add_extras(
    milp: Milp,
    staged: StagedGraph,
    run: Ints,
    alive: Ints,
    tensor: Ints,
    turn: Ints,
    position: Ints,
) -> list[tuple[Ints, Ints, Floats]]:
    """Add saving workspaces and take-overs; returns (ops, variables, bytes) of both."""
    arrays, sizes, num_turns = staged.graph.arrays, staged.sizes, run.size
    num_ops = staged.graph.num_ops
    after_run = np.full(sizes.tensor.size, -1, dtype=np.int64)
    after_run[tensor[position == 1]] = alive[position == 1]

    ops = np.flatnonzero(sizes.saving_delta[:num_turns])
    slot = np.zeros(num_turns, dtype=np.int64)
    slot[ops] = np.arange(ops.size)
    less = sizes.saving_delta[ops] < 0
    saving = milp.variables(ops.size, integral=less)
    milp.rows(ops.size, (saving, 1.0), (run[ops], -1.0))
    bundle = (position == 1) & (turn >= 0) & arrays.tensor_optional[tensor]
    bundle &= sizes.saving_delta[np.maximum(turn, 0)] != 0
    owner, bundle_alive = turn[bundle], alive[bundle]
    more = sizes.saving_delta[owner] > 0
    milp.rows(
        int(more.sum()),
        (bundle_alive[more], 1.0),
        (run[owner[more]], 1.0),
        (saving[slot[owner[more]]], -1.0),
        ub=1.0,
    )
    milp.placed(
        ops.size,
        (np.arange(ops.size)[less], saving[less], 1.0),
        (slot[owner[~more]], bundle_alive[~more], -1.0),
        lb=-np.inf,
        ub=0.0,
    )

    takes = sizes.takes[arrays.tensor_producer[sizes.takes] < num_turns]
    source, taker = arrays.tensor_takes_over[takes], arrays.tensor_producer[takes]
    shared = milp.variables(takes.size)
    # A tensor that is alive after the taker's turn has no storage to be taken over.
    is_read = np.flatnonzero(position >= 2)
    keys = tensor[is_read] * num_ops + turn[is_read]
    still = alive[is_read[np.searchsorted(keys, source * num_ops + taker)]]
    milp.rows(takes.size, (shared, 1.0), (run[taker], -1.0))
    milp.rows(takes.size, (shared, 1.0), (still, 1.0), ub=1.0)
    optional = arrays.tensor_optional[takes]
    milp.rows(int(optional.sum()), (shared[optional], 1.0), (after_run[takes[optional]], -1.0))
    overlap = np.minimum(sizes.tensor[takes], sizes.tensor[source])
    return [(ops, saving, sizes.saving_delta[ops]), (taker, shared, -overlap)]
