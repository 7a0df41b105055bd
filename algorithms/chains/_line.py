"""What the kernels of the recurrence read and write: a chain, solved rows, and room to work in."""

from __future__ import annotations

from dataclasses import dataclass

from schedsim.kernels.record import Ints, Reals, RealTable, Record, ShortInts, ShortTable
from schedsim.kernels.record import Table as IntTable


@dataclass(frozen=True, eq=False)
class PackedChain(Record):
    """A chain by stage, by bundle of a stage, and by row.

    Attributes
    ----------
    forward_s, forward_ws : (L,)
    x : (L + 1,)
        Bytes of the chain's input and of each stage's output.
    bundles : (L + 1,)
        The bundles of stage i, its own first, are ``bundles[i] .. bundles[i + 1] - 1``.
    own_s, saved, saving_ws, backward_ws : (num_bundles,)
        Time of a forward and its backward, bytes of the bundle, workspaces.
    row_of : (L, L + 1)
        By first stage and length.
    row_stage, row_length : (num_rows,)
    """

    forward_s: Reals
    own_s: Reals
    loss_s: float
    x: Ints
    bundles: Ints
    saved: Ints
    forward_ws: Ints
    saving_ws: Ints
    backward_ws: Ints
    loss_ws: int
    row_of: ShortTable
    row_stage: ShortInts
    row_length: ShortInts


@dataclass(frozen=True, eq=False)
class Table(Record):
    """Solved rows: times against memory.

    A dense row r is feasible from slot ``first[r]`` of `unit_bytes` on, and its time at
    ``first[r] + q`` is ``values[start[r] + q]``, constant from its last entry on. A row of break
    points has `count` of them from `start` on, with ascending `memory` and descending `values`.
    """

    dense: bool
    unit_bytes: int
    rest_bytes: int
    take_x: Ints
    take_saved: Ints
    first: Ints
    start: Ints
    count: Ints
    memory: Ints
    values: Reals


@dataclass(frozen=True, eq=False)
class Room(Record):
    """Room for two envelopes, the current one and the one made of it, and the state of the rows.

    Attributes
    ----------
    memory, values : (2, room)
    state : (5,) int64
        Which of the two there is; rows done; points filled; work done; what limit was met.
    cap, max_points, max_work : int
    """

    memory: IntTable
    values: RealTable
    state: Ints
    cap: int
    max_points: int
    max_work: int


@dataclass(frozen=True, eq=False)
class RunList(Record):
    """The runs of a schedule, the bundle that each stage saves, and a stack.

    Attributes
    ----------
    runs : (any,) int32
    bundle_of : (L,) int32
    stack : (any, 3) int64
        Entries (i, k, m) are sub-chains to run; (op, -1, 0) is a single run.
    """

    runs: ShortInts
    bundle_of: ShortInts
    stack: IntTable
