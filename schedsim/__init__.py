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
from .allocators import Allocation, allocate
from .analysis.explanation import Explanation, explain
from .api import certify, compare, plan, simulate
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
from .plans.pareto import pareto
from .plans.plan import Plan
from .simulation.result import Simulation
from .simulation.schedule import Schedule

if TYPE_CHECKING:
    __version__: str
    # For mypy alone: these names come from the package that needs torch, and are imported lazily.
    apply: Any
    drop_in_report: Any
    restore: Any
    cluster: Any
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
    "__version__",
    "allocate",
    "apply",
    "certify",
    "cluster",
    "compare",
    "drop_in_report",
    "explain",
    "load",
    "maximize",
    "pareto",
    "plan",
    "rematerialize",
    "restore",
    "save",
    "simulate",
    "watch",
    "ways",
]

find_beside()

_NEED_TORCH = {
    "apply": "rematerialize",
    "drop_in_report": "rematerialize",
    "rematerialize": "rematerialize",
    "restore": "drop_in.in_place",
    "watch": "watch",
    "ways": "rematerialize",
}


def __dir__() -> list[str]:
    """The public names, and nothing else."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import `name` when it is first asked for: the version, clusters, what runs real models."""
    if name == "__version__":
        return _version()
    if name == "cluster":
        from .clusters.facade import cluster

        return cluster
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


def _version() -> str:
    """The version of the imported checkout; without a checkout, of the installed package."""
    from importlib.metadata import PackageNotFoundError, version
    from pathlib import Path

    project = Path(__file__).resolve().parents[1] / "pyproject.toml"
    if project.is_file():
        import tomllib

        table = tomllib.loads(project.read_text()).get("project", {})
        if table.get("name") == __name__:
            return str(table["version"])
    try:
        return version(__name__)
    except PackageNotFoundError:
        return "0+unknown"
