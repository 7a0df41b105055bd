"""DTR (Kirisame et al. 2021): evict the tensor that is cheapest to lose when memory is short."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.arrays import GraphArrays
from schedsim.dataflow.graph import Graph
from schedsim.plans.effort import Effort
from schedsim.plans.least_budget import LeastBudget
from schedsim.plans.plan import Plan, best_of, timed
from schedsim.plans.search import SearchRecord
from schedsim.simulation.schedule import Schedule

if TYPE_CHECKING:
    from ._dtr_memory import Dataflow, EvictionRules

Heuristic = Literal["dtr", "dtr_eq", "local", "lru", "size", "msps", "neighbourhood"]
HEURISTICS: tuple[Heuristic, ...] = get_args(Heuristic)
"""The heuristics, in the order of the kernel's codes."""

MAX_RUNS_PER_OP = 30
MAX_STEPS = 200_000_000
"""Most steps of walks through evicted tensors; a replay beyond this limit is given up."""

_LOOKS_PER_UNIT = 1e8
"""Tensors that a replay looks at in about a second of a core."""

_STEPS_PER_UNIT = 1e8
"""Steps of walks in such a second, about."""


@timed()
def dtr(
    graph: Graph,
    budget_bytes: int,
    *,
    heuristic: Heuristic | Literal["all"] = "dtr",
    deallocation: Literal["eager", "never"] = "eager",
    time_limit_s: float | None = None,
    effort: Effort | float | None = None,
) -> Plan:
    """The schedule that online eviction makes of `graph` within `budget_bytes`.

    The ops run in the graph's order. Where an op's outputs and workspace do not fit beside what is
    in memory, DTR evicts the tensor with the least h, until they fit. An op with evicted inputs
    runs their producers first, recursively, with the inputs already there pinned; so DTR may fail
    where a schedule exists. With c(t) the time of the producer, m(t) the size, s(t) the time since
    the last use, and e*(t) the evicted tensors that must be recomputed before t, or after t from
    it::

        dtr            (c(t) + c(e*(t))) / (m(t) s(t))
        dtr_eq         the same, e*(t) held as groups that join but never split
        local          c(t) / (m(t) s(t))
        lru            1 / s(t)
        size           1 / m(t)
        msps           (c(t) + c(evicted ancestors)) / m(t)
        neighbourhood  c(t) + c(e*(t)), the reduced form of the paper's theorem 3.1

    Of tensors with the same h, DTR evicts the one used longest ago.

    Parameters
    ----------
    heuristic
        One of the above; ``"all"`` takes the fastest of their schedules.
    deallocation
        ``"eager"``: a tensor leaves memory after the last first run of an op that reads it, and
        for good after the last op that could need it, as known from the graph. ``"never"``: only
        evictions free memory, as for a runtime that learns of no deallocation.
    time_limit_s, effort
        As of `local_search`, for all replays together; a replay that would take more than what is
        left is given up. Without either, each replay ends by itself, or at 30 runs an op.

    Raises
    ------
    ValueError
        `heuristic` or `deallocation` is none of these.

    Notes
    -----
    Inputs of the graph and outputs of ``once`` ops cannot be recomputed, and are not evicted. DTR
    gives them up ("banishes" them) where nothing else can be evicted and all that depends on them
    is in memory, which then cannot be recomputed either. DTR's account charges whole tensors as
    long as they are in memory; the replay, which ends each tensor at its last read, charges no
    more.

    O(evictions x tensors in memory) for the heuristics without e*; with e*, each eviction walks the
    evicted neighbourhood of what it touches. Where DTR fails within the budget, larger budgets are
    tried by halving, because the schedule may still fit in the replay; the least at which DTR does
    not fail is the smallest budget reported. DTR may fail at some budget above that one.

    References
    ----------
    Kirisame, Lyubomirsky, Haan, Brennan, He, Roesch, Chen, Tatlock, "Dynamic tensor
    rematerialization", ICLR 2021, arXiv 2006.09616, sections 2, 3 and appendix.

    Examples
    --------
    >>> from schedsim import Graph, Op
    >>> forward = [Op(f"f{i}", time_s=1, reads=(f"x{i}",), writes={f"x{i + 1}": 1})
    ...            for i in range(4)]
    >>> backward = [Op(f"b{i}", "backward", 1, reads=(f"x{i}", f"d{i + 1}"), writes={f"d{i}": 1})
    ...             for i in (3, 2, 1, 0)]
    >>> loss = Op("loss", "loss", reads=("x4",), writes={"d4": 1})
    >>> graph = Graph("four", (*forward, loss, *backward), {"x0": 1})
    >>> plan = dtr(graph, 5)
    >>> plan.peak_bytes, plan.makespan_s
    (5, 9.0)
    """
    if heuristic != "all" and heuristic not in HEURISTICS:
        raise ValueError(f"heuristic {heuristic!r} is none of {', '.join(HEURISTICS)}, all")
    if deallocation not in ("eager", "never"):
        raise ValueError(f"deallocation {deallocation!r} is neither 'eager' nor 'never'")
    names = HEURISTICS if heuristic == "all" else (heuristic,)
    flow = dataflow(graph.arrays)
    eager = deallocation == "eager"
    limited = None
    if effort is not None or time_limit_s is not None:
        limited = Effort.of(effort, time_limit_s)
    given = {} if limited is None else limited.to_options()

    def is_over() -> bool:
        return limited is not None and limited.is_over()

    def schedules(budget: int) -> Iterator[tuple[Mapping[str, Any], Schedule]]:
        for name in names:
            if is_over():
                return
            left = math.inf if limited is None else limited.left
            runs, work = _replayed(flow, budget - graph.static_bytes, name, eager, left)
            if limited is not None:
                limited.spend(work)
                if work >= left and not limited.counted:
                    limited.note_clock()  # given up for the seconds that are left
            if runs is not None:
                options = {"heuristic": name, "deallocation": deallocation, **given}
                yield options, Schedule(graph.op_names, runs)

    plan = best_of(graph, budget_bytes, schedules(budget_bytes), planner="dtr")
    least = LeastBudget()  # how far down it would go is not known from one budget
    if not plan.feasible:
        low, high = budget_bytes, _most_bytes(graph)
        found = list(schedules(high))
        while high - low > max(1, high // 200) and not is_over():
            middle = (low + high) // 2
            more = list(schedules(middle))
            found += more
            low, high = (low, middle) if more else (middle, high)
        plan = best_of(graph, budget_bytes, found, planner="dtr")
        if not plan.feasible:
            # Without any replay nothing is known to fit, not even the whole memory.
            least = replace(plan.least, found_bytes=high if found else None)
    record = plan.search if limited is None else SearchRecord(ended_by=limited.ended_by)
    return replace(plan, least=least, search=record, options={**plan.options, **given})


def dtr_runs(
    arrays: GraphArrays, room_bytes: int, heuristic: Heuristic = "dtr_eq"
) -> NDArray[np.int32] | None:
    """The op runs of DTR within `room_bytes`; ``None`` where DTR fails.

    Parameters
    ----------
    arrays
        The arrays of the graph to run.
    room_bytes
        The budget less the static bytes.

    Examples
    --------
    >>> from schedsim import Graph, Op
    >>> graph = Graph("g", (Op("f", writes={"x": 8}), Op("b", "backward", reads=("x",))))
    >>> dtr_runs(graph.arrays, 8).tolist(), dtr_runs(graph.arrays, 7)
    ([0, 1], None)
    """
    return _replayed(dataflow(arrays), room_bytes, heuristic, True)[0]


def dtr_work(
    arrays: GraphArrays, room_bytes: int, heuristic: Heuristic
) -> tuple[NDArray[np.int32] | None, float]:
    """The result of `dtr_runs`, and about its work: every run may look at every tensor."""
    return _replayed(dataflow(arrays), room_bytes, heuristic, True)


def resident_after(
    arrays: GraphArrays, room_bytes: int, heuristic: Heuristic, num_ops: int
) -> NDArray[np.bool_] | None:
    """Which tensors are in memory after the first `num_ops` ops; ``None`` where DTR fails.

    Examples
    --------
    >>> from schedsim import Graph, Op
    >>> graph = Graph("g", (Op("f", writes={"x": 8}), Op("b", "backward", reads=("x",))))
    >>> resident_after(graph.arrays, 8, "dtr", 1).tolist()
    [True]
    """
    from ._dtr_kernel import DONE
    from ._dtr_memory import RESIDENT

    rules = eviction_rules(room_bytes, heuristic, True, *_usual_limits(arrays.op_time_s.size))
    ended, _, state = replayed(dataflow(arrays), rules, num_ops)
    return state == RESIDENT if ended == DONE else None


def dataflow(arrays: GraphArrays) -> Dataflow:
    """`arrays` with the readers of each tensor and the last op that can need it; O(reads)."""
    from ._dtr_memory import Dataflow, set_last_needs

    num_tensors, num_ops = arrays.tensor_bytes.size, arrays.op_time_s.size
    counts = np.bincount(arrays.read_tensor, minlength=num_tensors)
    reader_start = np.concatenate([[0], np.cumsum(counts)])
    op_of_read = np.repeat(np.arange(num_ops), np.diff(arrays.read_start))
    flow = Dataflow(
        arrays.op_time_s,
        arrays.op_workspace_bytes,
        arrays.op_saving_workspace_bytes,
        arrays.op_once,
        arrays.read_start,
        arrays.read_tensor,
        arrays.write_start,
        arrays.write_tensor,
        reader_start,
        op_of_read[np.argsort(arrays.read_tensor, kind="stable")],
        arrays.tensor_bytes,
        arrays.tensor_producer,
        arrays.tensor_optional,
        arrays.tensor_result,
        arrays.tensor_takes_over,
        last_need=np.empty(num_tensors, np.int64),
        needs_ended=np.empty(num_tensors, np.int64),
    )
    set_last_needs(flow)
    flow.needs_ended[:] = np.argsort(flow.last_need, kind="stable")
    return flow


def eviction_rules(
    room_bytes: int, heuristic: Heuristic, eager: bool, most_runs: float, most_steps: float
) -> EvictionRules:
    """The settings of `replayed`."""
    from ._dtr_memory import EvictionRules

    # More than all tensors changes nothing, nor does less than nothing; both fit in 64 bits.
    room_bytes = max(-1, min(2**53, room_bytes))
    code = HEURISTICS.index(heuristic)
    return EvictionRules(room_bytes, code, eager, int(most_runs), int(most_steps))


def replayed(
    flow: Dataflow, rules: EvictionRules, num_ops: int
) -> tuple[int, NDArray[np.int32], NDArray[np.int8]]:
    """(how the replay of the first `num_ops` ops ended, its runs, the state of each tensor)."""
    from ._dtr_kernel import replay
    from ._dtr_memory import empty_memory

    memory = empty_memory(flow.op_time_s.size, flow.tensor_bytes.size)
    runs = np.empty(rules.most_runs, np.int32)
    ended, made = replay(flow, rules, num_ops, memory, runs)
    return ended, runs[:made].copy(), memory.state


def _usual_limits(num_ops: int) -> tuple[int, int]:
    return MAX_RUNS_PER_OP * num_ops, MAX_STEPS


def _replayed(
    flow: Dataflow, room_bytes: int, heuristic: Heuristic, eager: bool, most_work: float = math.inf
) -> tuple[NDArray[np.int32] | None, float]:
    """(the runs, or nothing where it fails or takes more than `most_work`; the work it took)."""
    from ._dtr_kernel import DONE, TOO_LONG

    num_ops, run_work = flow.op_time_s.size, (flow.tensor_bytes.size + 100) / _LOOKS_PER_UNIT
    usual = _usual_limits(num_ops)
    limits = (most_work / run_work, most_work * _STEPS_PER_UNIT)
    few = limits[0] < usual[0] or limits[1] < usual[1]
    least = (min(usual[0], limits[0]), min(usual[1], limits[1]))
    ended, runs, _ = replayed(flow, eviction_rules(room_bytes, heuristic, eager, *least), num_ops)
    work = (int(runs.size) + num_ops) * run_work
    if ended == TOO_LONG and few:
        work = max(work, most_work)
    return runs if ended == DONE else None, work


def _most_bytes(graph: Graph) -> int:
    """A budget within which nothing is ever evicted."""
    arrays = graph.arrays
    workspace = np.maximum(arrays.op_workspace_bytes, arrays.op_saving_workspace_bytes)
    return graph.static_bytes + int(arrays.tensor_bytes.sum()) + int(workspace.max())
