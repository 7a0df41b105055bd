"""Whether every planner still answers what it answered before, schedule by schedule.

Run it before a change that must not change a plan, and again after it:

    python benchmarks/check_schedules.py FOLDER --record before.json
    python benchmarks/check_schedules.py FOLDER --against before.json

FOLDER holds workload files (``schedsim.chain/1``, ``schedsim.graph/1``) at any depth. Planners that
end by themselves are run as they are, the local search with a fixed number of moves on one thread.
A row is a workload, a budget and a planner; it holds the status, the peak, the time of the step,
the least budget and a hash of the schedule. The exit code is 1 where a row differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import schedsim
from schedsim.api import try_plan

FRACTIONS = (0.9, 0.6, 0.4, 0.25)
"""Budgets, of the store-all peak."""

CHAINS: dict[str, dict[str, Any]] = {
    "store_all": {},
    "recompute_all": {},
    "periodic": {},
    "chen_sqrt": {},
    "chen_greedy": {},
    "bisection": {},
    "revolve": {},
    "hrevolve": {},
    "rotor": {},
    "frontier": {},
}
GRAPHS: dict[str, dict[str, Any]] = {
    "store_all": {},
    "dtr": {},
    "chen_articulation": {},
    "saved_bytes": {"num_fractions": 4},
    "local_search": {"max_moves": 20_000, "num_threads": 1, "time_limit_s": 600.0},
}
"""Planners that end by work alone, with the options that make them do so."""

MAX_OPS = 800
"""Larger graphs take minutes; they are left to the benchmarks of planners."""


def rows(folder: Path) -> dict[str, list[Any]]:
    """``workload budget planner`` -> status, peak, time, least budget, hash of the schedule."""
    found: dict[str, list[Any]] = {}
    for file in sorted(folder.rglob("*.json")):
        if "schedsim." not in file.read_text()[:200]:
            continue  # answers that lie beside the workloads
        workload = schedsim.load(file)
        assert isinstance(workload, schedsim.Chain | schedsim.Graph)
        if workload.graph.num_ops > MAX_OPS:
            continue
        whole = schedsim.simulate(workload, schedsim.Schedule.store_all(workload)).peak_bytes
        for planner, options in (CHAINS if workload.kind == "chain" else GRAPHS).items():
            for fraction in FRACTIONS:
                budget_bytes = int(fraction * whole)
                key = f"{file.stem} {budget_bytes} {planner}"
                found[key] = _row(workload, budget_bytes, planner, options)
        print(file.stem, file=sys.stderr)
    return found


def _row(
    workload: schedsim.Chain | schedsim.Graph,
    budget_bytes: int,
    planner: str,
    options: dict[str, Any],
) -> list[Any]:
    try:
        plan = try_plan(workload, budget_bytes, planner, **options)
    except schedsim.SchedsimError as error:
        return [type(error).__name__]
    runs = "" if plan.schedule is None else " ".join(plan.schedule.names)
    digest = hashlib.sha256(runs.encode()).hexdigest()[:16]
    return [plan.status, plan.peak_bytes, plan.makespan_s, plan.min_feasible_bytes, digest]


def main() -> int:
    """Record, or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    kept = parser.add_mutually_exclusive_group(required=True)
    kept.add_argument("--record", type=Path, metavar="FILE")
    kept.add_argument("--against", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    found = rows(arguments.folder)
    if arguments.record:
        arguments.record.write_text(json.dumps(found, indent=0) + "\n")
        print(f"{len(found)} rows recorded")
        return 0
    before = json.loads(arguments.against.read_text())
    differing = [key for key in before | found if before.get(key) != found.get(key)]
    for key in differing:
        print(f"{key}: {before.get(key)} -> {found.get(key)}")
    print(f"{len(found)} rows, {len(differing)} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
