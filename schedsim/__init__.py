"""schedsim: decide which activations of a training step to keep or recompute, and prove it.

>>> import schedsim
>>> chain = schedsim.Chain.from_arrays(
...     "four", 4, forward_s=[1] * 4, backward_s=[2] * 4, output_bytes=[4] * 4, saved_bytes=[20] * 4
... )
>>> plan = schedsim.plan(chain, 60)
>>> plan.status, plan.peak_bytes <= 60
('optimal', True)
"""

from __future__ import annotations

from ._pareto import pareto
from .api import compare, plan
from .chain import Chain, Stage
from .errors import (
    InfeasibleBudgetError,
    InvalidScheduleError,
    InvalidWorkloadError,
    MissingDependencyError,
    PlannerLimitError,
    SchedsimError,
    UnsupportedError,
)
from .files import load, save
from .graph import Graph, Op
from .plans import Plan
from .schedule import Schedule
from .simulator import Simulation, simulate

__all__ = [
    "Chain",
    "Graph",
    "InfeasibleBudgetError",
    "InvalidScheduleError",
    "InvalidWorkloadError",
    "MissingDependencyError",
    "Op",
    "Plan",
    "PlannerLimitError",
    "SchedsimError",
    "Schedule",
    "Simulation",
    "Stage",
    "UnsupportedError",
    "compare",
    "load",
    "pareto",
    "plan",
    "save",
    "simulate",
]
