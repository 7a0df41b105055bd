"""What a free order of a graph's ops would save, for those who have not asked for one."""

from __future__ import annotations

from ...dataflow.graph import Graph
from ...plans.plan import Plan
from ...units import format_bytes
from ..given.loaded import Loaded
from ..show import percent
from .request import DEFAULT_PLANNER, PlanRequest

_OPTION = "--order free"
# Less of the store-all peak is not worth a word.
_WORTH = 0.05


def order_saves(request: PlanRequest, loaded: Loaded, plan: Plan, store_all_bytes: int) -> str:
    """What a free order would bring beside a `plan` that recomputes, in words; empty for little."""
    if not _is_choice(request, loaded, plan) or not plan.overhead:
        return ""
    from ...algorithms.graphs.free_order import greedy_orders

    assert isinstance(loaded.workload, Graph)
    peak = greedy_orders(loaded.workload)[0].peak_bytes
    if peak <= plan.budget_bytes:
        return "in another order it fits without recomputation"
    saved = 1 - peak / store_all_bytes
    if saved < _WORTH:
        return ""
    return f"in another order store-all needs {saved:.0%} less".replace("%", " %")


def least_in_free_order(
    request: PlanRequest, loaded: Loaded, plan: Plan
) -> tuple[str, str, str] | None:
    """The row of advice where nothing fits in the graph's order; ``None`` if it changes nothing."""
    if not _is_choice(request, loaded, plan):
        return None
    from ...algorithms.graphs.free_order import leanest_in_free_order

    assert isinstance(loaded.workload, Graph)
    found = leanest_in_free_order(loaded.workload)
    if found.peak_bytes <= plan.budget_bytes:
        overhead = found.makespan_s / loaded.workload.store_all_s - 1
        return _OPTION, "fits", f"at most {percent(overhead)} over its store-all"
    if found.peak_bytes < (plan.min_feasible_bytes or 0):
        return _OPTION, "", f"least {format_bytes(found.peak_bytes)}"
    return None


def _is_choice(request: PlanRequest, loaded: Loaded, plan: Plan) -> bool:
    """Whether an order was left to the default planner, which obeys one.

    A budget of what an allocator reserves is not compared with the bytes that an order needs.
    """
    if not isinstance(loaded.workload, Graph) or request.own.get("order") is not None:
        return False
    if plan.setting.allocator is not None:
        return False
    return request.planner == DEFAULT_PLANNER and not (request.rules or request.link)
