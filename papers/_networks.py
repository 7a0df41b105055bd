"""Op graphs of networks by formula, and plans for them, shared by several sources."""

from __future__ import annotations

from functools import cache

from _common import budget_at

from schedsim import Graph, Plan
from schedsim.api import try_plan
from schedsim.workloads import WorkloadOptions, build_workload


@cache
def op_graph(preset: str, batch: int, attention: str | None = None, layers: int = 0) -> Graph:
    """A step op by op, activations alone, by the roofline of a V100."""
    options = WorkloadOptions(
        preset=preset,
        batch=batch,
        attention=attention,
        layers=layers or None,
        granularity="op",
        device="v100",
    )
    graph = build_workload(options).workload
    assert isinstance(graph, Graph)
    return graph


@cache
def by_blocks(preset: str, batch: int, fraction: float, layers: int = 0) -> Plan:
    """The plan of the planner by blocks at a share of the store-all peak."""
    graph = op_graph(preset, batch, layers=layers)
    return try_plan(graph, budget_at(graph, fraction), "hierarchical", time_limit_s=5)
