"""A proven bound on the time of a step with copies: memory, link and recomputation at one cut.

Take any schedule whose first runs keep the graph's order, and the moment at which op c starts for
the first time. A tensor that an earlier op wrote and a later first run reads is then on the device;
or it has been copied to the host, which took time on the link before that moment and takes time to
copy back after it; or it is recomputed afterwards. With

- ``here[t]``, ``away[t]``: tensor t is on the device, or on its way there; or on the host only;
- ``again[p]``: op p runs again after that moment;
- ``wait``: seconds by which c starts later than the ops before it take,

the least of ``max(computing, copying back)`` after the cut, plus the time before the cut, bounds
the makespan. What is away was copied after it was written, and what is neither here nor made again
comes back before it is read (``_deadlines.py``). Every schedule gives such numbers, all but the
last whole. The bound of a cut is a mixed-integer linear
program, or its relaxation; the bound of the step is the best over the cuts tried.

Where some ops need nearly all of the budget, several cuts in one program say more: copies for which
there is no room beside one op have little time before the next (``_window_model.py``). A program
may also grow from one cut, by the ops that its answer has no room for (``_crowded_ops.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from schedsim.dataflow.graph import Graph
from schedsim.plans.effort import Effort
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from ..graphs._cut_table import CutTable
from ..graphs._milp import Answer, Ints, Milp, NodeWork, milp_work
from ..graphs._scaling import byte_units
from ._answer_tokens import answer_tokens
from ._crowded_ops import crowded_ops
from ._deadlines import add_deadlines
from ._timeline import LinkedGraph
from ._window_model import CopiesWhole, WindowProgram, window_program

# Solvers meet rows to 1e-6; the step lasts this many units, beside which 1e-6 is small.
_UNITS = 1e4
_SAFE_UNITS = 1e-3
# Number of cuts whose relaxation is solved, and of those that are then solved in whole numbers.
_NUM_CUTS, _NUM_WHOLE = 24, 6
# Bounds are lower than what programs say by this share of the step; where a schedule meets one, the
# program is asked for one that is faster by a share that planners do not tell from none.
BOUND_TOLERANCE, _FASTER = 1.2 * _SAFE_UNITS / _UNITS, 5e-10
# Cuts of one program with windows, beside the loss: the ops that leave least of the budget. It is
# worth its work where one of them leaves less than that share.
_NUM_TIGHT, _TIGHT_SHARE = 6, 0.3
_WINDOWS: tuple[CopiesWhole, ...] = ("shares", "windows", "whole")
# Work of such a program by its non-zeros: its first node, and any other; and of one that grows.
_WINDOWS_WORK, _GROWING_WORK = (1e-5, 6e-8), (7e-5, 7e-7)


@dataclass(frozen=True, slots=True)
class CopyBound:
    """A bound: no schedule in the order of first runs is faster; infinite where none fits.

    Attributes
    ----------
    bound_s : float
    op : str
        The op of the cut, or of several that which leaves least room; empty where only the
        store-all time is known.
    cuts : tuple of int
        The ops of several cuts in one growing program.
    """

    bound_s: float
    op: str = ""
    cuts: tuple[int, ...] = ()


def copy_bound(
    graph: Graph, linked: LinkedGraph, budget_bytes: int, *, effort: Effort
) -> CopyBound:
    """The best bound over single cuts, at the ops with most memory in store-all and at others.

    O(ops + reads) variables for each cut.
    """
    best = CopyBound(graph.store_all_s)
    table = CutTable(graph, budget_bytes, "fixed")
    relaxed = []
    for op in _ops_to_cut(graph, _NUM_CUTS):
        if effort.is_over():
            break
        found = _cut_bound_s(graph, linked, table, op, effort, integral=False)
        relaxed.append((found, op))
        if found > best.bound_s:
            best = CopyBound(found, graph.op_names[op])
    for found, op in sorted(relaxed, reverse=True)[:_NUM_WHOLE]:
        if effort.is_over() or math.isinf(best.bound_s) or found <= graph.store_all_s:
            break
        whole = _cut_bound_s(graph, linked, table, op, effort, integral=True)
        if whole > best.bound_s:
            best = CopyBound(whole, graph.op_names[op])
    return CopyBound(_rounded_up(graph, linked, best.bound_s), best.op)


def windows_bound(
    graph: Graph, linked: LinkedGraph, budget_bytes: int, known: CopyBound, *, effort: Effort
) -> CopyBound:
    """`known`, or the bound of several cuts in one program, if that is higher.

    The cuts are at the loss and at the ops that leave least room, if these leave little.
    """
    table = CutTable(graph, budget_bytes, "fixed")
    ops = _tightest(graph, table)
    for copies in _WINDOWS if ops else ():
        if effort.is_over() or graph.store_all_s == 0 or math.isinf(known.bound_s):
            break
        program = window_program(graph, linked, table, ops, graph.store_all_s / _UNITS, copies)
        known, _ = _solved(graph, table, ops, program, effort, known, _WINDOWS_WORK)
    return CopyBound(_rounded_up(graph, linked, known.bound_s), known.op)


def growing_bound(
    graph: Graph,
    linked: LinkedGraph,
    budget_bytes: int,
    known: CopyBound,
    *,
    effort: Effort,
    below_s: float = math.inf,
    starts: list[Ints] | None = None,
) -> CopyBound:
    """`known`, or the bound of more and more cuts in one program, if that is higher.

    The first cut is that of `known`; the next are at the ops that the answer has no room for, until
    there is none, or the next program takes more than the effort. Where no schedule takes less than
    `below_s`, less a share of 5e-10, the bound is that. `starts` takes up the answers as sequences
    for a search.
    """
    table = CutTable(graph, budget_bytes, "fixed")
    unit_s, least_s = graph.store_all_s / _UNITS, below_s * (1 - _FASTER)
    if not known.op or unit_s == 0 or known.bound_s >= least_s:
        return known
    ops = [graph.op_index(known.op)]
    while not effort.is_over():
        program = window_program(graph, linked, table, ops, unit_s)
        if program is not None and math.isfinite(least_s):
            program.shorter_than(least_s / unit_s)
        before = known
        known, answer = _solved(graph, table, ops, program, effort, known, _GROWING_WORK)
        if answer is None or program is None:
            break
        if answer.infeasible and math.isfinite(least_s):
            return CopyBound(least_s, known.op)
        if known is not before:
            known = replace(known, cuts=tuple(ops))
        if answer.x is None:
            break
        if starts is not None:
            starts.append(answer_tokens(program, answer.x))
        more = crowded_ops(program, answer.x)
        if not set(more) - set(ops):
            break
        ops = sorted({*ops, *more})
    return replace(known, bound_s=_rounded_up(graph, linked, known.bound_s))


def confirmed(
    graph: Graph,
    linked: LinkedGraph,
    budget_bytes: int,
    bound: CopyBound,
    makespan_s: float,
    *,
    effort: Effort,
) -> CopyBound:
    """`bound`, or the makespan of a schedule less a share of 5e-10, if nothing is faster than that.

    A bound is lower than what its program says by the solver's tolerance. Where only this tolerance
    lies between it and a schedule, the same program is asked for anything faster.
    """
    if not bound.op or not bound.bound_s < makespan_s <= bound.bound_s * (1 + BOUND_TOLERANCE):
        return bound
    table = CutTable(graph, budget_bytes, "fixed")
    least_s = makespan_s * (1 - _FASTER)
    if bound.cuts:
        unit_s = graph.store_all_s / _UNITS
        program = window_program(graph, linked, table, bound.cuts, unit_s)
        if program is not None:
            program.shorter_than(least_s / unit_s)
            _, answer = _solved(graph, table, bound.cuts, program, effort, bound, _GROWING_WORK)
            if answer is not None and answer.infeasible:
                return CopyBound(least_s, bound.op)
        return bound
    op = graph.op_index(bound.op)
    whole = _cut_bound_s(graph, linked, table, op, effort, integral=True, below_s=least_s)
    return CopyBound(least_s, bound.op) if math.isinf(whole) else bound


def _tightest(graph: Graph, table: CutTable) -> list[int]:
    room = table.rooms_bytes
    tight = np.argsort(room, kind="stable")[:_NUM_TIGHT].tolist()
    if room[tight[0]] > _TIGHT_SHARE * table.budget_bytes:
        return []
    return sorted({*np.flatnonzero(graph.arrays.op_phase > 0)[:1].tolist(), *tight})


def _solved(
    graph: Graph,
    table: CutTable,
    ops: Sequence[int],
    program: WindowProgram | None,
    effort: Effort,
    known: CopyBound,
    work: tuple[float, float],
) -> tuple[CopyBound, Answer | None]:
    """`known`, or the bound of the program of cuts at `ops`, if that is higher; and its answer.

    There is no answer where the first node takes more than the effort.
    """
    tightest = graph.op_names[min(ops, key=lambda op: int(table.rooms_bytes[op]))]
    if program is None:
        return CopyBound(math.inf, tightest), None
    num = program.milp.num_nonzeros
    nodes = NodeWork(work[0] * num, work[1] * num)
    if effort.counted and nodes.first > effort.left:
        return known, None
    answer = program.milp.solve(effort, nodes=nodes)
    if answer.bound is not None and not answer.infeasible:
        bound_s = (answer.bound - _SAFE_UNITS) * graph.store_all_s / _UNITS
        # The same cut says the same but for the tolerance, and is the one to ask again.
        if bound_s > known.bound_s * (1 + BOUND_TOLERANCE):
            known = CopyBound(bound_s, tightest)
    return known, answer


def _ops_to_cut(graph: Graph, most: int) -> Sequence[int]:
    """The loss and ops around the store-all peak, spread out, in the graph's order."""
    memory = simulate(graph, Schedule.store_all(graph)).memory_bytes
    order = np.argsort(-memory, kind="stable")
    turn = np.flatnonzero(graph.arrays.op_phase > 0)[:1].tolist()
    near = order[: most // 2].tolist()
    spread = order[:: max(1, order.size // most)][: most // 2].tolist()
    return sorted({*turn, *near, *spread})


def _cut_bound_s(
    graph: Graph,
    linked: LinkedGraph,
    table: CutTable,
    op: int,
    effort: Effort,
    *,
    integral: bool,
    below_s: float = math.inf,
) -> float:
    """The bound of the cut at `op`, in seconds.

    It is infinite where nothing fits there, or nothing takes less than `below_s`.
    """
    arrays = graph.arrays
    total_s = graph.store_all_s
    if total_s == 0:
        return 0.0
    unit_s = total_s / _UNITS
    num_tensors, producer = arrays.tensor_bytes.size, arrays.tensor_producer
    turns = np.arange(graph.num_ops)
    after = turns > op
    room = int(table.rooms_bytes[op])
    if room < 0:
        return math.inf
    own = np.zeros(num_tensors, dtype=np.bool_)
    own[arrays.read_tensor[arrays.read_start[op] : arrays.read_start[op + 1]]] = True
    made_here = producer == op
    known = producer < op  # graph inputs too
    byte_unit, _ = byte_units(arrays.tensor_bytes, max(1, table.budget_bytes))

    milp = Milp()
    here = milp.variables(num_tensors, lb=own, ub=known | made_here, integral=integral)
    away = milp.variables(num_tensors, ub=known & ~own, integral=integral)
    ran = turns < op
    again = milp.variables(graph.num_ops, ub=ran & ~arrays.op_once, integral=integral)
    wait = milp.variables(1, ub=np.inf)
    end = milp.variables(1, ub=below_s / unit_s, cost=1.0)

    needed = np.flatnonzero(table.needed(after) & known)
    source = np.where(producer[needed] >= 0, again[np.maximum(producer[needed], 0)], -1)
    milp.rows(
        needed.size, (here[needed], 1.0), (away[needed], 1.0), (source, 1.0), lb=1.0, ub=np.inf
    )
    edges = np.flatnonzero(ran[table.readers] & known[arrays.read_tensor])
    reader, read = table.readers[edges], arrays.read_tensor[edges]
    source = np.where(producer[read] >= 0, again[np.maximum(producer[read], 0)], -1)
    milp.rows(
        edges.size, (again[reader], 1.0), (here[read], -1.0), (away[read], -1.0), (source, -1.0)
    )
    charged = np.flatnonzero(known & ~own & (arrays.tensor_bytes > 0))
    sizes = arrays.tensor_bytes[charged] / byte_unit
    # Rounded outwards by more than the solver's tolerance, so that no schedule is excluded.
    milp.placed(1, (0, here[charged], sizes), lb=-np.inf, ub=room / byte_unit * (1 + 1e-9))
    if linked.host_room < int(arrays.tensor_bytes.sum()):
        host = linked.host_room / byte_unit * (1 + 1e-9)
        milp.placed(1, (0, away[charged], sizes), lb=-np.inf, ub=host)

    times = arrays.op_time_s / unit_s
    before = math.fsum(times[:op].tolist())
    rest = math.fsum(times[op:].tolist())
    out, back = linked.out_s / unit_s, linked.back_s / unit_s
    milp.placed(1, (0, away, out), (0, wait, -1.0), lb=-np.inf, ub=before)
    milp.placed(1, (0, end, 1.0), (0, wait, -1.0), (0, again, -times), lb=before + rest, ub=np.inf)
    milp.placed(1, (0, end, 1.0), (0, wait, -1.0), (0, away, -back), lb=before, ub=np.inf)
    # What is written late has little time to be copied before the cut ...
    made = np.flatnonzero((producer >= 0) & known & (arrays.tensor_bytes > 0))
    left = np.zeros(op + 1)
    left[2:] = np.cumsum(times[1:op][::-1])
    add_deadlines(
        milp,
        op - producer[made],
        [(away[made], out[made])],
        np.zeros(made.size),
        left,
        [(int(wait[0]), -1.0)],
    )
    # ... and what is read early has little time to come back after it, unless it is made again.
    read_at = table.first_readers(op)
    soon = np.flatnonzero((read_at < graph.num_ops) & known & ~own & (arrays.tensor_bytes > 0))
    source = np.where(producer[soon] >= 0, again[np.maximum(producer[soon], 0)], -1)
    until = np.zeros(graph.num_ops)
    until[op + 1 :] = np.cumsum(times[op:-1])
    add_deadlines(
        milp,
        read_at[soon],
        [(here[soon], -back[soon]), (source, -back[soon])],
        back[soon],
        until - before - rest,
        [(int(end[0]), -1.0), (int(wait[0]), 1.0)],
    )
    with effort.part(1.0) as part:
        if part.counted and integral and milp_work(milp.num_nonzeros) > part.left:
            return 0.0  # the relaxation has given its bound already
        answer = milp.solve(part, integral=integral)
    if answer.infeasible:
        return math.inf if not integral or below_s < math.inf else total_s
    if answer.bound is None:
        return total_s
    return max(total_s, (answer.bound - _SAFE_UNITS) * unit_s)


def _rounded_up(graph: Graph, linked: LinkedGraph, bound_s: float) -> float:
    """`bound_s`, or the next sum of whole times above it.

    Runs start when others end, so that the least makespan is a multiple of the common unit of the
    times of ops and copies, where there is one.
    """
    if not math.isfinite(bound_s) or bound_s <= graph.store_all_s:
        return bound_s
    copied = graph.arrays.tensor_bytes > 0
    times = np.concatenate([graph.arrays.op_time_s, linked.out_s[copied], linked.back_s[copied]])
    if graph.store_all_s >= 2.0**40 or np.any(times != np.floor(times)) or times.max() >= 2.0**40:
        return bound_s
    unit = float(np.gcd.reduce(times.astype(np.int64)))
    return math.ceil(bound_s / unit) * unit if unit else bound_s
