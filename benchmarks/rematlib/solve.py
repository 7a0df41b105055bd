"""Plans every instance at its budgets, and writes the best known with their certificates.

    python benchmarks/rematlib/solve.py [GROUP or NAME ...] [--effort 3]

The best known stays where nothing better is found, with the date on which it was. Budgets of an
instance are chosen once: the least that is found feasible, and four between it and the store-all
peak. If a schedule of a chain is faster than all persistent ones, it is kept beside the best
persistent one, with its own bound.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from fractions import Fraction
from typing import Any

import check
from make import GROUPS, HERE
from schedsim.algorithms.certificates.certify import certify, persistent_curve
from submit import joined, keep, rival, summaries, write_index, write_json

import schedsim
from schedsim import Chain, Graph, Plan
from schedsim.api import try_plan
from schedsim.files.document import from_dict

SHARES = (0.1, 0.35, 0.6, 0.85)
"""Where the four budgets lie, as shares of the way from the least one to the store-all peak."""


def least_budget(workload: Chain | Graph, effort: float) -> int:
    """The least budget within which a schedule is known: proven for chains, found for graphs."""
    if isinstance(workload, Chain):
        curve = persistent_curve(workload)
        assert curve is not None
        return curve.points[0][0]
    floor = int(try_plan(workload, 0, "cuts", effort=0.1).least.floor_bytes)
    plan = try_plan(workload, floor, "local_search", effort=effort)
    if plan.peak_bytes is not None:
        return plan.peak_bytes
    found = plan.least.found_bytes
    assert found is not None
    return found


def budgets_between(least: int, most: int) -> list[int]:
    """The four budgets of an instance."""
    return [least + int((most - least) * share) for share in SHARES]


def solve(workload: Chain | Graph, budget: int, effort: float) -> dict[str, Any]:
    """A certificate of what is found within `budget`, as the library keeps it."""
    plan: Plan
    if isinstance(workload, Chain):
        plan = try_plan(workload, budget, "frontier")  # the class of the library's bounds
    else:
        plan = try_plan(workload, budget, order="fixed", effort=effort)
        if plan.schedule is None:  # found once while the least was looked for
            plan = try_plan(workload, budget, "local_search", order="fixed", effort=4 * effort)
    return certified(workload, plan, effort)


def solve_beyond(chain: Chain, best: dict[str, Any], effort: float) -> dict[str, Any] | None:
    """A certificate of a schedule faster than `best`, the best persistent one; ``None``: none."""
    plan = try_plan(chain, best["budget_bytes"], effort=effort)
    if plan.makespan_s is None or plan.makespan_s >= Fraction(best["makespan_s"]):
        return None
    return certified(chain, plan, effort)


def certified(workload: Chain | Graph, plan: Plan, effort: float) -> dict[str, Any]:
    """The certificate of `plan` as the library keeps it."""
    certificate = certify(workload, plan, effort=2 * effort, max_leaves=100)
    document = certificate.without_document().to_dict()
    document["status"] = "optimal" if certificate.optimal else plan.status
    document["found"] = {
        "by": f"schedsim {schedsim.__version__}, {plan.found_by}",
        "date": datetime.date.today().isoformat(),
    }
    return document


def main(arguments: list[str]) -> None:
    """Solve what is asked for; the index and a file of certificates an instance are written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--effort", type=float, default=3.0)
    parser.add_argument("--missing", action="store_true", help="only what has no solution yet")
    given = parser.parse_args(arguments)
    rows = json.loads((HERE / "index.json").read_text())["instances"]
    for row in rows:
        if given.names and row["name"] not in given.names and row["group"] not in given.names:
            continue
        began = time.process_time()
        document = check.read(HERE / row["file"])
        workload = from_dict(document)
        assert isinstance(workload, Chain | Graph)
        path = HERE / "solutions" / f"{row['name']}.json.gz"
        if given.missing and path.is_file():
            continue
        kept = check.read(path) if path.is_file() else {"name": row["name"], "certificates": []}
        if "least_bytes" not in row or not kept["certificates"]:
            row["least_bytes"] = least_budget(workload, given.effort)
            row["budgets_bytes"] = budgets_between(row["least_bytes"], row["store_all_peak_bytes"])
            kept["certificates"] = []
        by_budget = {one["budget_bytes"]: one for one in kept["certificates"]}
        instance = check.Instance(document)
        found = []
        for budget in dict.fromkeys([row["least_bytes"], *row["budgets_bytes"]]):
            one = solve(workload, budget, given.effort)
            if budget in by_budget:
                one = joined(by_budget[budget], one)
            check.verify(instance, one)
            found.append(one)
        kept["certificates"] = found
        for place, one in enumerate(found):
            beyond = None
            if isinstance(workload, Chain):
                beyond = solve_beyond(workload, one, given.effort)
            if beyond is not None:
                beyond = joined(rival(kept, place, beyond), beyond)
                check.verify(instance, beyond)
                keep(kept, place, beyond)
        row["best"] = summaries(kept)
        row["least_proven"] = any(
            one["least"] and one["least"]["bytes"] == row["least_bytes"] for one in found
        )
        write_json(path, kept)
        write_index(HERE, {"licence": "MIT", "groups": GROUPS}, rows)
        marks = "".join("*" if one["optimal"] else "." for one in found)
        took = time.process_time() - began
        print(f"{row['name']:40} {row['num_ops']:5} {marks} {took:6.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
