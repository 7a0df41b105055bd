"""Experiments: workloads x budgets x planners x seeds, run over processes, resumed after a kill."""

from __future__ import annotations

from ..plans.budgets import parse_budget
from .execute import run_sweep
from .experiment import Experiment, read_experiment
from .results import ResultFile, read_rows
from .runs import Run, expand, run_key

__all__ = [
    "Experiment",
    "ResultFile",
    "Run",
    "expand",
    "parse_budget",
    "read_experiment",
    "read_rows",
    "run_key",
    "run_sweep",
]
