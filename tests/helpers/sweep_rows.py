"""Rows of a sweep, made by hand."""

from __future__ import annotations

from typing import Any


def row(planner: str, budget: int, overhead: float | None, **more: Any) -> dict[str, Any]:
    """A row on one workload of 10 s, with a bound of 11 s."""
    key = f"{planner}{budget}{overhead}{more}"
    return {
        "key": key,
        "workload": "w",
        "content_hash": "h",
        "budget": f"{budget}%",
        "budget_bytes": budget,
        "store_all_bytes": 100,
        "planner": planner,
        "options": {},
        "seed": None,
        "status": "infeasible" if overhead is None else "feasible",
        "overhead": overhead,
        "store_all_s": 10.0,
        "lower_bound_s": 11.0,
        "bound_scope": "any schedule",
        "min_feasible_bytes": 40,
        **more,
    }
