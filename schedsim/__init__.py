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

from typing import TYPE_CHECKING, Any

from ._checkout import find_beside
from ._pareto import pareto
from .allocators import Allocation, allocate
from .analysis.explanation import Explanation, explain
from .api import compare, plan
from .dataflow.chain import Chain, Stage
from .dataflow.graph import Graph, Op
from .errors import (
    DeadlockError,
    InfeasibleBudgetError,
    InvalidScheduleError,
    InvalidWorkloadError,
    MissingDependencyError,
    PlannerLimitError,
    SchedsimError,
    UnsupportedError,
)
from .files.document import load, save
from .plans.maximize import maximize
from .plans.plan import Plan
from .simulation.schedule import Schedule
from .simulation.simulator import Simulation, simulate

if TYPE_CHECKING:
    # mypy checks each package from its own place; these come from one that needs torch.
    apply: Any
    rematerialize: Any
    watch: Any
    ways: Any

__all__ = [
    "Allocation",
    "Chain",
    "DeadlockError",
    "Explanation",
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
    "allocate",
    "apply",
    "compare",
    "explain",
    "load",
    "maximize",
    "pareto",
    "plan",
    "rematerialize",
    "save",
    "simulate",
    "watch",
    "ways",
]

find_beside()

_NEED_TORCH = {
    "apply": "rematerialize",
    "rematerialize": "rematerialize",
    "watch": "watch",
    "ways": "rematerialize",
}


def __getattr__(name: str) -> Any:
    """What runs real models, imported when it is first asked for, as it takes torch."""
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        module = import_module(f"{__name__}.validation.{_NEED_TORCH[name]}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise MissingDependencyError(
            f"schedsim.{name} needs torch", hint="pip install 'schedsim[torch]'"
        ) from error
    return getattr(module, name)
