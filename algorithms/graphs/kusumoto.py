"""Kusumoto et al. 2019: dynamic programming over lower sets of the forward part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph
from schedsim.errors import PlannerLimitError
from schedsim.plans.plan import Plan, best_of, timed
from schedsim.simulation.schedule import Schedule

from ._forward_part import ForwardPart, forward_part
from ._lower_sets import MAX_TIME_STEPS, LowerSets, all_masks, lower_sets, reachable_masks

MAX_SETS = 3000
NUM_LIMITS = 24


@timed()
def kusumoto(
    graph: Graph,
    budget_bytes: int,
    *,
    family: Literal["approximate", "exact"] = "approximate",
    objective: Literal["time", "memory"] = "time",
    order: Literal["fixed", "free"] = "fixed",
    max_sets: int = MAX_SETS,
    num_limits: int = NUM_LIMITS,
) -> Plan:
    """The fastest plan that fits of those that grow the forward part by lower sets.

    A strategy is an increasing sequence of lower sets, sets of forward ops closed under
    predecessors, that ends with the set of all of them. After the ops of a set, only the outputs of
    its boundary are kept: the ops with a reader outside. Before the backward runs over the ops
    between two sets, it recomputes the outputs that were not kept. With U what is stored before, V
    the ops between L and the next set L', A the readers of L' outside it, and B what these read
    outside L', the paper counts

        M(U) + 2 M(V) + M(A) + M(B)

    bytes while V runs backward, the gradients of V included. The dynamic program finds, for each
    set and each time recomputed, the least bytes stored within a limit on that count. The replay
    counts differently, because it knows when each tensor is last read. So the dynamic program is
    solved at several limits, the budget itself and others from the least possible to the one that
    stores all, and the fastest schedule that fits `budget_bytes` in the replay is taken.

    Parameters
    ----------
    family
        ``"exact"``: all lower sets; ``"approximate"``: for each op, the op with all its ancestors.
    objective
        ``"time"``: the least time recomputed (time-centric); ``"memory"``: the most, which stores
        the least and leaves the replay the most to gain (memory-centric).
    order
        ``"fixed"``: first runs keep the graph's order; ``"free"``: as in the paper, set by set,
        the backward of the last set first.
    max_sets
        The most lower sets to look at.
    num_limits
        Number of limits to try, geometrically spaced.

    Raises
    ------
    PlannerLimitError
        The family has more than `max_sets` lower sets.
    ValueError
        `family`, `objective` or `order` is not one of these values, or `num_limits` is not
        positive.

    Notes
    -----
    O(#L^2 T) time per limit and O(#L T) memory, with #L lower sets and T steps of time; times are
    rounded to steps where they are not few multiples of one number. The last set's ops, which their
    own backward follows, are kept and not recomputed. The size of an op is what it writes; the
    forward part is what stands before the first loss or backward op.

    References
    ----------
    Kusumoto, Inoue, Watanabe, Akiba, Koyama, "A graph theoretic framework of recomputation
    algorithms for memory-efficient backpropagation", NeurIPS 2019, arXiv 1905.11722, sections 3
    and 4.

    Examples
    --------
    >>> from schedsim import Graph, Op
    >>> forward = [Op(f"f{i}", time_s=1, reads=(f"x{i}",), writes={f"x{i + 1}": 1})
    ...            for i in range(9)]
    >>> backward = [Op(f"b{i}", "backward", 1, reads=(f"x{i}", f"d{i + 1}"), writes={f"d{i}": 1})
    ...             for i in range(8, -1, -1)]
    >>> loss = Op("loss", "loss", reads=("x9",), writes={"d9": 1})
    >>> graph = Graph("nine", (*forward, loss, *backward), {"x0": 1})
    >>> graph.store_all_s, kusumoto(graph, 8).makespan_s
    (18.0, 21.0)
    """
    if family not in ("approximate", "exact"):
        raise ValueError(f"family {family!r} is neither 'approximate' nor 'exact'")
    if objective not in ("time", "memory"):
        raise ValueError(f"objective {objective!r} is neither 'time' nor 'memory'")
    if order not in ("fixed", "free"):
        raise ValueError(f"order {order!r} is neither 'fixed' nor 'free'")
    if num_limits < 1:
        raise ValueError(f"num_limits must be at least 1: {num_limits}")
    part = forward_part(graph.arrays)
    # Without a backward nothing needs to be recomputed, and no lower sets are needed.
    masks = family_masks(part, family, max_sets) if part.num_ops < graph.num_ops else []
    named = {"family": family, "objective": objective, "order": order}

    def schedules() -> Iterator[tuple[Mapping[str, Any], Schedule]]:
        yield {**named, "limit_bytes": None}, Schedule.store_all(graph)
        room_bytes = budget_bytes - graph.static_bytes
        for limit, runs in lower_set_runs(
            part, masks, room_bytes, objective=objective, order=order, num_limits=num_limits
        ):
            yield {**named, "limit_bytes": limit}, Schedule(graph.op_names, runs)

    return best_of(graph, budget_bytes, schedules(), planner="kusumoto")


def family_masks(
    part: ForwardPart, family: Literal["approximate", "exact"], max_sets: int
) -> list[int]:
    """The lower sets of `family` as bit masks, by ascending size.

    Raises
    ------
    PlannerLimitError
        The family has more than `max_sets` lower sets.
    """
    if family == "exact":
        return all_masks(part, max_sets)
    if part.num_ops > max_sets:
        raise PlannerLimitError(
            f"the forward part has {part.num_ops:,} ops, more than {max_sets:,} lower sets",
            hint="raise max_sets, or use chen_articulation, whose time grows with the ops",
        )
    return reachable_masks(part)


def lower_set_runs(
    part: ForwardPart,
    masks: list[int],
    room_bytes: int,
    *,
    objective: Literal["time", "memory"] = "time",
    order: Literal["fixed", "free"] = "fixed",
    num_limits: int = NUM_LIMITS,
    max_steps: int = MAX_TIME_STEPS,
) -> Iterator[tuple[int, NDArray[np.int32]]]:
    """(limit, op runs) of the best sequence of `masks` at each limit, without duplicates.

    The limits are `room_bytes` and `num_limits` others.
    """
    from ._lower_set_kernel import best_sequence, least_limit, list_growth

    if not part.num_ops or not masks:
        return
    sets = lower_sets(part, masks, max_steps)
    growth = list_growth(sets.arrays)
    most = 2 * int(sets.set_bytes[-1])
    least = least_limit(growth, -1, most)
    num_steps = int(sets.set_steps[-1])
    seen: set[bytes] = set()
    limits = {*_limits(least, most, num_limits), min(max(room_bytes, least), most)}
    for limit in sorted(limits):
        sequence = best_sequence(growth, num_steps, limit, objective == "memory")
        if sequence.tobytes() not in seen:
            seen.add(sequence.tobytes())
            group = _groups(sets, sequence[::-1].tolist(), part.num_ops)
            first_runs = order_by_groups(part, group) if order == "free" else None
            yield limit, part.runs_of_groups(group, first_runs)


def order_by_groups(part: ForwardPart, group: NDArray[np.int64]) -> NDArray[np.int64]:
    """The graph's ops group by group, then those after the part from the last group back; O(reads).

    An op after the part belongs to the latest group that it reads from; or, where it reads a tensor
    of the backward that belongs to an earlier group, to that group.
    """
    arrays, num_ops = part.arrays, part.arrays.op_time_s.size
    reads, start = arrays.read_tensor.tolist(), arrays.read_start.tolist()
    producer = arrays.tensor_producer.tolist()
    of_op = group.tolist()
    for op in range(part.num_ops, num_ops):
        made_by = [producer[t] for t in reads[start[op] : start[op + 1]]]
        values = [of_op[p] for p in made_by if 0 <= p < part.num_ops]
        latest = min((of_op[p] for p in made_by if p >= part.num_ops), default=int(group.max()))
        of_op.append(min(latest, max(values, default=latest)))
    forward = sorted(range(part.num_ops), key=lambda op: (of_op[op], op))
    rest = sorted(range(part.num_ops, num_ops), key=lambda op: (-of_op[op], op))
    return np.array(forward + rest, dtype=np.int64)


def _groups(sets: LowerSets, sequence: list[int], num_ops: int) -> NDArray[np.int64]:
    """For each op, the first set of `sequence` that it belongs to."""
    group = np.zeros(num_ops, dtype=np.int64)
    for index in sequence:
        bits = np.unpackbits(sets.words[index].view(np.uint8), bitorder="little")[:num_ops]
        group += bits == 0
    return group


def _limits(least: int, most: int, count: int) -> list[int]:
    if count == 1 or least <= 0:
        return [least]
    ratio = (most / least) ** (1 / (count - 1))
    return sorted({least, *(round(least * ratio**k) for k in range(1, count))})
