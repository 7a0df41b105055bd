"""Plans that recompute more than the peak of the bytes asks for.

The gradients of a step stay to its end. Where they take more than what it computes besides, the
bytes of every schedule peak at the last gradient, so that a smaller budget of bytes changes nothing
until there is no plan. But what is reserved depends on what was computed before: blocks of
activations are no place for larger gradients, and stay beside them. A graph whose results have no
bytes has its peak where activations are alive, and its plans recompute as far as they are asked to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ..files.workload_files import workload_hash
from ..plans.plan import Plan, WorkloadRef
from ..simulation.schedule import Schedule
from ..simulation.simulator import simulate

if TYPE_CHECKING:
    from ..dataflow.graph import Graph


def without_result_bytes(graph: Graph) -> Graph:
    """`graph` with results of no bytes; nothing takes over their storage, nor they another's."""
    results = set(graph.results)
    ops = [
        replace(
            op,
            writes={name: 0 if name in results else size for name, size in op.writes.items()},
            in_place={new: old for new, old in op.in_place.items() if not {new, old} & results},
        )
        if results.intersection((*op.writes, *op.in_place.values()))
        else op
        for op in graph.ops
    ]
    return replace(graph, ops=tuple(ops), recorded=None)


@dataclass(frozen=True)
class ActivationPlanner:
    """Plans of a graph within budgets for everything but its results.

    Attributes
    ----------
    graph
        The graph as it is.
    most_bytes
        The largest budget that makes a difference.
    """

    graph: Graph
    most_bytes: int
    _plan: Callable[[int], Plan]

    @classmethod
    def of(cls, graph: Graph, plan: Callable[[Graph, int], Plan]) -> ActivationPlanner:
        """The planner of `graph` that asks `plan` for plans of another graph."""
        light = without_result_bytes(graph)
        most = simulate(light, Schedule.store_all(light)).peak_bytes
        return cls(graph, most, lambda budget_bytes: plan(light, budget_bytes))

    @cached_property
    def least_bytes(self) -> int | None:
        """The least budget that has a plan; ``None`` where unknown."""
        return self._plan(0).min_feasible_bytes

    def __call__(self, budget_bytes: int) -> Plan:
        """The plan within `budget_bytes`, as a plan of the graph as it is."""
        graph = self.graph
        ref = WorkloadRef(graph.name, graph.kind, workload_hash(graph))
        return replace(self._plan(budget_bytes), workload=ref)
