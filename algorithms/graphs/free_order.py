"""What a free order of first runs saves, without a search."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import Simulation, simulate

from ._greedy_order import PATIENCES, greedy_order
from ._lean import leanest_schedule
from ._packed_graph import PackedGraph, pack_graph
from .bounds import least_memory_bytes


def greedy_orders(graph: Graph, packed: PackedGraph | None = None) -> list[Simulation]:
    """Store-all steps in greedy orders of the ops, the one of the least peak first.

    Parameters
    ----------
    packed
        `graph`, packed; it is packed here by default.

    Notes
    -----
    The next op is always the ready op that leaves the fewest bytes alive, in some of the orders the
    more so the earlier it stands in the graph's own. O(ops * ready ops + reads) an order.

    Examples
    --------
    Two long ways to one op: one after the other needs less memory than both at once.

    >>> from schedsim.workloads.synthetic_graphs import branches
    >>> graph = branches(100)
    >>> greedy_orders(graph)[0].peak_bytes <= simulate(graph, Schedule.store_all(graph)).peak_bytes
    True
    """
    packed = packed or pack_graph(graph.arrays)
    lines = [greedy_order(packed, patience) for patience in PATIENCES]
    found = [simulate(graph, Schedule(graph.op_names, line)) for line in lines]
    return sorted(found, key=lambda simulation: simulation.peak_bytes)


def leanest_in_free_order(graph: Graph) -> Simulation:
    """The schedule of the least peak found in a free order, within a second or a few.

    `local_search` names its peak as the least budget that it has found, and has a plan there.
    """
    packed = pack_graph(graph.arrays)
    best = greedy_orders(graph, packed)[0].schedule.bind(graph)
    lines: list[NDArray[np.int64]] = [np.arange(graph.num_ops), best.astype(np.int64)]
    return leanest_schedule(graph, packed, lines, least_memory_bytes(graph)[0], True)
