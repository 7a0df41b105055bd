"""Persistent schedules of chains beside the optimum over all schedules.

    python benchmarks/bench_chain_optimum.py [--effort 40] [--table FILE]

Every row is a chain and a budget. The row gives how far the budget lies on the way from the least
persistent one to the store-all peak. Times are processor time; states are those that the search has
seen.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

from schedsim.algorithms.chains.chain_optimum import chain_optimum
from schedsim.algorithms.chains.frontier import exact_frontier

from schedsim import Chain, Plan
from schedsim.workloads import SYNTHETIC

_SHARES = (0.02, 0.1, 0.35, 0.6)
_HEAD = ["chain", "stages", "budget", "persistent %", "any schedule %", "proven", "states", "s"]


def chains() -> Iterator[Chain]:
    """Chains of 20 and 30 stages: equal stages of unit sizes, and synthetic ones."""
    for num in (20, 30):
        ones = [1] * num
        yield Chain.from_arrays(
            f"unit-{num}", 1, forward_s=ones, backward_s=ones, output_bytes=ones, saved_bytes=ones
        )
        for generator in SYNTHETIC.values():
            yield generator(num, 1)


def rows(effort: float) -> Iterator[list[str]]:
    """The rows of the table; each schedule has been replayed by its planner."""
    for chain in chains():
        curve = exact_frontier(chain)
        least, most = int(curve.budget_bytes[0]), int(curve.budget_bytes[-1])
        for share in _SHARES:
            budget = least + int(share * (most - least))
            at = curve.budget_bytes.searchsorted(budget, side="right") - 1
            persistent = float(curve.makespan_s[at]) / chain.store_all_s - 1
            begun = time.process_time()
            plan: Plan = chain_optimum(chain, budget, effort=effort)
            took_s = time.process_time() - begun
            bound = plan.lower_bound_s / chain.store_all_s - 1
            yield [
                chain.name.rpartition("-")[0],
                str(chain.num_stages),
                f"{100 * share:.0f} %",
                f"{100 * persistent:.3f}",
                f"{100 * (plan.overhead or 0.0):.3f}",
                "yes" if plan.status == "optimal" else f"no, at least {100 * bound:.3f}",
                f"{plan.search.figures['states']:,}",
                f"{took_s:.1f}",
            ]


def main() -> None:
    """Print the rows, and write them as Markdown where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--effort", type=float, default=40.0)
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    text = ["# Persistent schedules beside the optimum, measured", ""]
    text += ["| " + " | ".join(_HEAD) + " |", "|---|---:|---:|---:|---:|---|---:|---:|"]
    for row in rows(args.effort):
        text.append("| " + " | ".join(row) + " |")
        print(text[-1], flush=True)
    if args.table is not None:
        args.table.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
