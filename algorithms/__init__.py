"""Planners: pure functions from a workload and a budget to a plan, one idea a file."""

from __future__ import annotations

from .registry import PLANNERS, PlannerInfo, get_planner

__all__ = ["PLANNERS", "PlannerInfo", "get_planner"]
