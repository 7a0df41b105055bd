"""The runs of an experiment, each with the key that identifies its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..api import comparable, get_planner, planner_takes
from ..errors import SchedsimError
from ..files.workload_files import offered_hash, workload_hash
from ..plans.budgets import parse_budget
from ..simulation.schedule import Schedule
from ..simulation.simulator import simulate
from .experiment import RULES, Experiment, PlannerSpec

if TYPE_CHECKING:
    from ..dataflow.chain import Chain
    from ..dataflow.graph import Graph

# To be raised when planners return other results for the same input.
RESULTS_VERSION = 2


@dataclass(frozen=True)
class Run:
    """One planner on one workload within one budget.

    Attributes
    ----------
    key
        SHA-256 over everything that decides the result: the workload's content, the budget, the
        planner with its options and seed, and versions. No names and no times.
    label, budget
        Workload and budget, as written in the experiment.
    """

    key: str
    label: str
    budget: str
    workload: Chain | Graph
    budget_bytes: int
    store_all_bytes: int
    planner: str
    options: Mapping[str, Any]
    seed: int | None

    @property
    def by_clock(self) -> bool:
        """Whether only the clock ends the run."""
        counted = "effort" in self.options or "max_moves" in self.options
        return "time_limit_s" in self.options and not counted

    def head(self) -> dict[str, Any]:
        """The part of the run's row that describes the question."""
        return {
            "key": self.key,
            "workload": self.label,
            "kind": self.workload.kind,
            "content_hash": workload_hash(self.workload),
            "budget": self.budget,
            "budget_bytes": self.budget_bytes,
            "store_all_bytes": self.store_all_bytes,
            "planner": self.planner,
            "options": dict(self.options),
            "seed": self.seed,
        }


def expand(
    experiment: Experiment, workloads: Mapping[str, Chain | Graph]
) -> tuple[list[Run], list[str]]:
    """The runs of `experiment`, in its order, and a sentence for each combination left out.

    Parameters
    ----------
    workloads
        Label -> workload; labels without a workload are left out.

    Notes
    -----
    Runs with the same question (``"8GB"`` and a share that amounts to 8 GB; several seeds for a
    planner without random choices) become one run. A planner skips workloads of a kind that it does
    not take.
    """
    runs: dict[str, Run] = {}
    left_out: dict[str, None] = {}
    for spec in experiment.planners:
        _check_options(spec)
    for workload_spec in experiment.workloads:
        workload = workloads.get(workload_spec.label)
        if workload is None:
            continue
        everything = simulate(workload, Schedule.store_all(workload)).peak_bytes
        planners: Sequence[PlannerSpec] = experiment.planners or [
            PlannerSpec(name, {}) for name in comparable(workload)
        ]
        for text in experiment.budgets:
            budget_bytes = parse_budget(text, everything)
            for spec in planners:
                kinds, takes = planner_takes(spec.name)
                if workload.kind not in kinds:
                    why = f"{spec.name} on {workload_spec.label}: it does not take a"
                    left_out[f"{why} {workload.kind}"] = None
                    continue
                for seed in experiment.seeds if "seed" in takes else (None,):
                    options = _settings(spec, takes, workload.kind, experiment)
                    key = run_key(workload, budget_bytes, spec.name, options, seed)
                    run = Run(
                        key,
                        workload_spec.label,
                        text,
                        workload,
                        budget_bytes,
                        everything,
                        spec.name,
                        options,
                        seed,
                    )
                    runs.setdefault(key, run)
    return list(runs.values()), list(left_out)


def run_key(
    workload: Chain | Graph,
    budget_bytes: int,
    planner: str,
    options: Mapping[str, Any],
    seed: int | None,
) -> str:
    """The key of a result; two keys are equal exactly if everything that decides the result is.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("one", 1, forward_s=[1], backward_s=[1], output_bytes=[1],
    ...                           saved_bytes=[1])
    >>> run_key(chain, 8, "rotor", {}, None) == run_key(chain, 9, "rotor", {}, None)
    False
    """
    info = get_planner(planner)
    solvers = info.packages or (("scipy",) if workload.kind == "graph" else ())
    document = {
        "results": RESULTS_VERSION,
        "versions": {name: _version(name) for name in ("schedsim", *solvers)},
        "workload": offered_hash(workload) if options.get("allow") else workload_hash(workload),
        "kind": workload.kind,
        "budget_bytes": budget_bytes,
        "planner": planner,
        "options": dict(options),
        "seed": seed,
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _check_options(spec: PlannerSpec) -> None:
    _, takes = planner_takes(spec.name)  # raises for an unknown name
    for option in spec.options:
        if option == "seed":
            raise SchedsimError(
                f"planner {spec.name!r} has its own seed", hint="write seeds = [0, 1] instead"
            )
        if option not in takes and option not in RULES:
            able = ", ".join(sorted(takes - {"seed"}))
            raise SchedsimError(
                f"planner {spec.name!r} does not take {option}",
                hint=f"it takes {able}" if able else f"leave {option} out",
            )


def _settings(
    spec: PlannerSpec, takes: frozenset[str], kind: str, experiment: Experiment
) -> dict[str, Any]:
    """The options of a run, with default limits of work or seconds."""
    options = dict(spec.options)
    given = options.keys() & {"time_limit_s", "effort", "max_moves"}
    moving = kind == "graph" or "link" in options
    if not given and moving and "max_moves" in takes:
        options["max_moves"] = experiment.max_moves
    elif not given and "effort" in takes:
        options["effort"] = experiment.effort
    if "time_limit_s" in takes and given != {"time_limit_s"}:
        options.setdefault("time_limit_s", experiment.time_limit_s)
    for rule in RULES:
        if patterns := getattr(experiment, rule):
            options.setdefault(rule, list(patterns))
    return options
