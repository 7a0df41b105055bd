"""Planners: pure functions from a workload and a budget to a plan, one idea a file."""

from __future__ import annotations

from .registry import PLANNERS, PlannerInfo, all_planners, get_planner, planner_names

__all__ = ["PLANNERS", "PlannerInfo", "all_planners", "get_planner", "planner_names"]
