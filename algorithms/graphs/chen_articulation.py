"""Chen et al. 2016, algorithm 3, on graphs: segments that end at articulation points."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph
from schedsim.plans.plan import Plan, best_of, timed
from schedsim.simulation.schedule import Schedule

from ._forward_part import ForwardPart, forward_part

MAX_THRESHOLDS = 200
"""The search over thresholds tries at most this many, evenly spaced among the distinct ones."""


@timed()
def chen_articulation(
    graph: Graph,
    budget_bytes: int,
    *,
    candidates: Literal["articulation", "all"] = "articulation",
    search: Literal["paper", "all"] = "all",
) -> Plan:
    """The fastest plan of algorithm 3 that fits, over thresholds b.

    The function walks the forward ops in the graph's order. A segment ends at a candidate where the
    bytes written since the last end pass b. Tensors that cross from a segment into a later one are
    kept, and so is the whole last segment; anything else that the backward lacks is recomputed
    where it is first needed, each op at most twice. The forward part is what stands before the
    first loss or backward op; nothing else is recomputed, and a graph without a backward runs
    unchanged.

    Parameters
    ----------
    candidates
        ``"articulation"``: ops whose removal disconnects the forward part, taken as an undirected
        graph of its ops; only the outputs of one op cross there. ``"all"``: every op, where
        whatever crosses is kept (the "linearised" form that Checkmate compares with).
    search
        ``"paper"``: the values of appendix A: 0, and six around ``b0 = sqrt(x y)``; ``"all"``:
        those, and every b at which the segments change, at most `MAX_THRESHOLDS` of them.

    Raises
    ------
    ValueError
        `candidates` or `search` is not one of these values.

    Notes
    -----
    O(ops + edges) to find the candidates, and a replay per distinct set of segments.

    References
    ----------
    Chen, Xu, Zhang, Guestrin, "Training deep nets with sublinear memory cost", arXiv 1604.06174,
    2016, algorithm 3 and appendix A. Jain et al., "Checkmate", MLSys 2020, arXiv 1910.02653,
    section 6, for the two sets of candidates.

    Examples
    --------
    >>> from schedsim import Graph, Op
    >>> forward = [Op(f"f{i}", time_s=1, reads=(f"x{i}",), writes={f"x{i + 1}": 1})
    ...            for i in range(4)]
    >>> backward = [Op(f"b{i}", "backward", 1, reads=(f"x{i}", f"d{i + 1}"), writes={f"d{i}": 1})
    ...             for i in (3, 2, 1, 0)]
    >>> loss = Op("loss", "loss", reads=("x4",), writes={"d4": 1})
    >>> graph = Graph("four", (*forward, loss, *backward), {"x0": 1})
    >>> plan = chen_articulation(graph, 5)
    >>> plan.peak_bytes, plan.makespan_s
    (5, 9.0)
    """
    if candidates not in ("articulation", "all"):
        raise ValueError(f"candidates {candidates!r} is neither 'articulation' nor 'all'")
    if search not in ("paper", "all"):
        raise ValueError(f"search {search!r} is neither 'paper' nor 'all'")

    def schedules() -> Iterator[tuple[Mapping[str, Any], Schedule]]:
        for threshold, runs in segment_runs(
            forward_part(graph.arrays), candidates=candidates, search=search
        ):
            yield {"candidates": candidates, "b_bytes": threshold}, Schedule(graph.op_names, runs)

    return best_of(graph, budget_bytes, schedules(), planner="chen_articulation")


def segment_runs(
    part: ForwardPart,
    *,
    candidates: Literal["articulation", "all"] = "articulation",
    search: Literal["paper", "all"] = "all",
    max_thresholds: int = MAX_THRESHOLDS,
) -> Iterator[tuple[int, NDArray[np.int32]]]:
    """(b, op runs) for each distinct set of segments, by ascending b."""
    if candidates == "all":
        may_end = np.ones(part.num_ops, dtype=np.bool_)
    else:
        may_end = articulation_points(part)
    thresholds = set(_paper_thresholds(part, may_end))
    if search == "all":
        thresholds |= set(_all_thresholds(part, may_end, max_thresholds))
    seen: set[bytes] = set()
    for threshold in sorted(thresholds):
        group = segments(part, may_end, threshold)
        if group.tobytes() not in seen:
            seen.add(group.tobytes())
            yield threshold, part.runs_of_groups(group)


def segments(
    part: ForwardPart, may_end: NDArray[np.bool_], threshold_bytes: int
) -> NDArray[np.int64]:
    """The number of each op's segment for threshold b, ``(num_ops,)``; O(ops)."""
    group = np.empty(part.num_ops, dtype=np.int64)
    number = gathered = 0
    sizes = part.op_bytes.tolist()
    for op, ends in enumerate(may_end.tolist()):
        group[op] = number
        gathered += sizes[op]
        if ends and gathered > threshold_bytes:
            number, gathered = number + 1, 0
    return group


def articulation_points(part: ForwardPart) -> NDArray[np.bool_]:
    """Ops whose removal disconnects the forward part, directions ignored, ``(num_ops,)``.

    By depth-first search with low points (Hopcroft & Tarjan 1973); O(ops + edges).

    Examples
    --------
    >>> from schedsim import Graph, Op
    >>> ops = (Op("a", writes={"a": 1}), Op("b", reads=("a",), writes={"b": 1}),
    ...        Op("c", reads=("a", "b"), writes={"c": 1}), Op("d", reads=("c",)))
    >>> articulation_points(forward_part(Graph("g", ops).arrays)).tolist()
    [False, False, True, False]
    """
    num = part.num_ops
    beside: list[list[int]] = [[] for _ in range(num)]
    for one, other in part.edges.tolist():
        beside[one].append(other)
        beside[other].append(one)
    found = np.zeros(num, dtype=np.bool_)
    depth = [-1] * num
    low = [0] * num
    for root in range(num):
        if depth[root] >= 0:
            continue
        depth[root] = 0
        num_children = 0
        stack = [(root, -1, iter(beside[root]))]
        while stack:
            node, above, rest = stack[-1]
            for other in rest:
                if depth[other] < 0:
                    depth[other] = low[other] = depth[node] + 1
                    stack.append((other, node, iter(beside[other])))
                    break
                if other != above:
                    low[node] = min(low[node], depth[other])
            else:
                stack.pop()
                if above == root:
                    num_children += 1
                elif above >= 0 and low[node] >= depth[above]:
                    found[above] = True
                if above >= 0:
                    low[above] = min(low[above], low[node])
        found[root] = num_children > 1
    return found


def _paper_thresholds(part: ForwardPart, may_end: NDArray[np.bool_]) -> list[int]:
    """0, and the six values of appendix A around sqrt(x y)."""
    if not part.num_ops:
        return [0]
    group = segments(part, may_end, 0)
    stored = int(part.arrays.tensor_bytes[part.outputs_read_after(group)].sum())
    largest = int(np.bincount(group, weights=part.op_bytes).max())
    middle = math.sqrt(max(1, stored) * max(1, largest))
    low, high = middle / math.sqrt(2), middle * math.sqrt(2)
    return [0, *(round(low + (high - low) * k / 5) for k in range(6))]


def _all_thresholds(part: ForwardPart, may_end: NDArray[np.bool_], most: int) -> list[int]:
    # Segments change only at sums of bytes from one candidate (or the start) to another.
    written = np.concatenate([[0], np.cumsum(part.op_bytes)])
    ends = np.concatenate([[0], np.flatnonzero(may_end) + 1])
    if ends.size > 4 * most:
        ends = ends[np.linspace(0, ends.size - 1, 4 * most).astype(np.int64)]
    at_ends = written[ends]
    sums = np.unique(np.append(at_ends[None, :] - at_ends[:, None], written[-1]))
    sums = sums[sums >= 0]
    if sums.size > most:
        sums = sums[np.linspace(0, sums.size - 1, most).astype(np.int64)]
    return [int(one) for one in sums]
