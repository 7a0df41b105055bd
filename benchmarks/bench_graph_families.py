"""Graph planners on synthetic families: the best of all, `auto` beside it, its bound and its times.

    python benchmarks/bench_graph_families.py --results FILE [--seeds 0] [--planners auto,cuts]
        [--rows recurrent:100:20%,tree:100:20%] [--table FILE]

Every row is a family, a number of ops, a budget and a seed; every planner's answer is replayed. The
budget is a share of the store-all peak, or `+10%`: so much above the bytes that the largest op
needs alone. Lines go to the results file one by one, and a run that was stopped goes on where it
was. With some planners alone, *best* is of these; `auto` is always among them. Times are processor
time of all threads, because other programs may run on the machine; `first` is when `auto` had its
first plan.
"""

from __future__ import annotations

import argparse
import json
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from schedsim.algorithms.graphs.bounds import least_memory_bytes

from schedsim import Graph, Schedule, simulate
from schedsim.api import try_plan
from schedsim.errors import SchedsimError
from schedsim.plans import progress
from schedsim.workloads import SYNTHETIC
from schedsim.workloads.synthetic_graphs import SYNTHETIC_GRAPHS, layered

PAGE_HEAD = """\
# Graph planners on synthetic families

`python benchmarks/bench_graph_families.py --results FILE --seeds 0,1,2,3,4 --planners auto
--effort 10` makes the rows (10,000 ops: `--effort 20`); with `--effort 20 --again-above 1`, the
default effort, it runs those again whose gap is 1 % or more; and `--table FILE` makes this page.
An effort of 20 is about ten seconds of two cores. The
generators are in `schedsim/workloads/synthetic_graphs.py` and `synthetic_networks.py`. A budget is
a share of the store-all peak; `+10%` is so much above the bytes that the largest op needs alone.

- *auto*: by how much the step with the plan is longer than the store-all step. Every plan is
  replayed by the simulator.
- *bound*: no schedule whose first runs keep the graph's order takes less.
- *gap*: from the bound to the plan, in percent of the step's time at the bound.
- *first plan*, *auto s*: seconds of the processor, over all threads. Other programs ran on the same
  two cores, and shared their caches, which lengthens these times. Effort counts work, so that plans
  and bounds are the same on any machine.

[How graphs are searched](../../docs/graph-search.md) says why the widest gaps are open, and what
was tried to close them.
""".splitlines()

# Family, ops or stages, budgets.
ROWS: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    ("layered", 1000, ("80%", "40%")),
    ("layered", 3000, ("80%", "60%")),
    ("layered", 10000, ("80%", "60%")),
    ("wide", 1000, ("80%", "60%")),
    ("wide", 5000, ("80%",)),
    ("branches", 1000, ("70%", "40%")),
    ("experts", 1000, ("70%", "40%")),
    ("nested-skips", 1000, ("70%", "40%")),
    ("recurrent", 1000, ("70%", "40%")),
    ("tree", 1000, ("70%", "40%")),
    ("views", 1000, ("70%", "40%")),
    ("one-huge-op", 1000, ("70%",)),
    ("attention-unet", 300, ("70%", "35%")),
    ("encoder-decoder", 200, ("70%", "35%")),
    ("message-passing", 300, ("70%", "35%")),
    ("shared-experts", 300, ("70%", "35%")),
    ("dense", 300, ("70%", "35%")),
    ("bidirectional", 300, ("70%", "35%")),
    ("butterfly", 300, ("70%", "40%")),
    ("series-parallel", 300, ("70%", "35%")),
    ("chain uniform", 60, ("+10%", "+50%")),
    ("chain heavy-tailed", 40, ("+10%", "+50%")),
)
PLANNERS: dict[str, dict[str, Any]] = {
    "auto": {},
    "local_search": {"other_seed": True},
    "cuts": {},
    "dtr": {"heuristic": "all"},
    "chen_articulation": {"candidates": "all"},
}
SEARCHES = ("auto", "local_search", "cuts")


def graph_of(family: str, size: int, seed: int) -> Graph:
    """The graph of a row."""
    if family.startswith("chain "):
        return SYNTHETIC[family.removeprefix("chain ")](size, seed).graph
    return SYNTHETIC_GRAPHS[family](size, seed)


def budget_of(graph: Graph, budget: str) -> int:
    """Bytes of a budget given as a share of the store-all peak, or as more than the least."""
    share = float(budget.strip("+%")) / 100
    if budget.startswith("+"):
        return int((1 + share) * least_memory_bytes(graph)[0])
    return int(share * simulate(graph, Schedule.store_all(graph)).peak_bytes)


class FirstPlan(progress.Progress):
    """When the running search had its first plan, in seconds of processor time."""

    first_s: float | None = None  # of the class: a facade may begin a search of its own
    clock = staticmethod(time.process_time)

    def report(self, *args: Any, **kwargs: Any) -> None:
        """Take the time of the first finite report."""
        super().report(*args, **kwargs)
        if FirstPlan.first_s is None and self.best_s < float("inf"):
            FirstPlan.first_s = self.clock()


def run(graph: Graph, budget_bytes: int, planner: str, seed: int, effort: float) -> dict[str, Any]:
    """One planner, as a part of a line of the results."""
    options = dict(PLANNERS[planner])
    if planner in SEARCHES:
        options["effort"] = effort if planner != "cuts" else effort / 4
        options["seed"] = seed + 1000 if options.pop("other_seed", False) else seed
    FirstPlan.first_s = None
    begun, begun_wall = time.process_time(), time.perf_counter()
    try:
        with progress.searching(planner):
            plan = try_plan(graph, budget_bytes, planner, **options)
    except SchedsimError as error:
        return {"refused": str(error)}
    assert plan.schedule is None or simulate(graph, plan.schedule).peak_bytes <= budget_bytes
    first_s = FirstPlan.first_s
    return {
        "overhead": plan.overhead,
        "bound": plan.lower_bound_s / plan.store_all_s - 1,
        "infeasible": plan.proven_infeasible,
        "first_cpu_s": None if first_s is None else first_s - begun,
        "cpu_s": time.process_time() - begun,
        "wall_s": time.perf_counter() - begun_wall,
        "ended_by": plan.search.ended_by,
    }


def measure(args: argparse.Namespace) -> None:
    """Run what the results file lacks: rows, and planners of rows that are there."""
    progress.Progress = FirstPlan  # type: ignore[misc]  # the planners report to this one
    done = {
        (row["family"], row["size"], row["budget"], row["seed"]): row
        for row in read(args.results)
        if row["effort"] >= args.effort or is_closed(row, args.again_above)
    }
    small = layered(60)
    chosen = [name for name in PLANNERS if name == "auto" or name in args.planners.split(",")]
    for planner in chosen:  # kernels are compiled outside of the times
        run(small, budget_of(small, "70%"), planner, 0, 0.1)
    for family, size, budget, seed in rows(args):
        line = done.get((family, size, budget, seed), {})
        found, effort = line.get("planners", {}), line.get("effort", args.effort)
        lacking = [name for name in chosen if name not in found]
        if not lacking:
            continue
        graph = graph_of(family, size, seed)
        budget_bytes = budget_of(graph, budget)
        found |= {name: run(graph, budget_bytes, name, seed, effort) for name in lacking}
        line = {"family": family, "size": size, "budget": budget, "seed": seed}
        line |= {"ops": graph.num_ops, "effort": effort, "planners": found}
        with args.results.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(cells(line), flush=True)


def is_closed(line: dict[str, Any], most: float) -> bool:
    """Whether the gap of a row is below `most` percent, or it is proven that nothing fits."""
    auto = line["planners"]["auto"]
    if auto.get("overhead") is None:
        return bool(auto.get("infeasible")) or most == float("inf")
    return gap_of(line) < most


def rows(args: argparse.Namespace) -> Iterator[tuple[str, int, str, int]]:
    """Family, size, budget and seed."""
    own = [one.split(":") for one in args.rows.split(",") if one]
    chosen = [(family, int(size), (budget,)) for family, size, budget in own] or ROWS
    for seed in map(int, args.seeds.split(",")):
        for family, size, budgets in chosen:
            for budget in budgets:
                if args.only in family and size <= args.most_ops:
                    yield family, size, budget, seed


def read(results: Path) -> list[dict[str, Any]]:
    """The lines of the results file; of two of the same row the later one."""
    lines = (
        [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    )
    rows = {(one["family"], one["size"], one["budget"], one["seed"]): one for one in lines}
    return list(rows.values())


def cells(line: dict[str, Any]) -> list[str]:
    """A row of the table."""
    found = line["planners"]
    overheads = {
        name: one["overhead"] for name, one in found.items() if one.get("overhead") is not None
    }
    bound = max(one.get("bound", 0.0) for one in found.values())
    auto = found["auto"]
    best = min(overheads, key=lambda name: (overheads[name], name != "auto"), default=None)
    never = any(one.get("infeasible") for one in found.values())
    name = "none fits: proven" if never else "-" if best is None else best
    mine, first = overheads.get("auto"), auto["first_cpu_s"]
    return [
        line["family"],
        str(line["ops"]),
        line["budget"].replace("%", " %"),
        str(line["seed"]),
        "-" if best is None else f"{100 * overheads[best]:.3f}",
        name,
        "-" if mine is None else f"{100 * mine:.3f}",
        f"{100 * bound:.3f}",
        "-" if mine is None else f"{gap_of(line):.3f}",
        "-" if first is None else f"{first:.1f}",
        f"{auto['cpu_s']:.1f}",
        f"{line['effort']:g}",
    ]


def table(lines: list[dict[str, Any]]) -> str:
    """All rows, as Markdown."""
    head = ["graph", "ops", "budget", "seed", "best %", "by", "auto %", "bound %", "gap %"]
    head += ["first plan s", "auto s", "effort"]
    text = ["| " + " | ".join(head) + " |", "|---|---:|---:|---:|---:|---|" + "---:|" * 6]
    text += ["| " + " | ".join(cells(line)) + " |" for line in lines]
    return "\n".join(text) + "\n"


def summary(lines: list[dict[str, Any]]) -> str:
    """A line for each family and budget, over its seeds, as Markdown."""
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["family"], line["size"], line["budget"]), []).append(line)
    head = (
        "| graph | ops | budget | rows | median % | median gap % | largest gap % | first plan s |"
    )
    text = [head, "|---|---:|---:|---:|---:|---:|---:|---:|"]
    for (family, _, budget), group in groups.items():
        found = [one for one in group if one["planners"]["auto"].get("overhead") is not None]
        gaps = [gap_of(one) for one in found]
        first = [one["planners"]["auto"]["first_cpu_s"] or 0.0 for one in found]
        mine = [100 * one["planners"]["auto"]["overhead"] for one in found]
        numbers = ["-"] * 4
        if found:
            numbers = [f"{median(mine):.2f}", f"{median(gaps):.2f}", f"{max(gaps):.2f}"]
            numbers.append(f"{median(first):.1f}, at most {max(first):.1f}")
        ops = sorted({one["ops"] for one in group})
        sizes = f"{ops[0]}" if len(ops) == 1 else f"{ops[0]} to {ops[-1]}"
        count = str(len(group)) if len(found) == len(group) else f"{len(found)} of {len(group)}"
        row = [family, sizes, budget.replace("%", " %"), count, *numbers]
        text.append("| " + " | ".join(row) + " |")
    return "\n".join(text) + "\n"


def gap_of(line: dict[str, Any]) -> float:
    """From the bound to what `auto` has, in percent of the time at the bound."""
    found = line["planners"]
    bound = max(one.get("bound", 0.0) for one in found.values())
    return 100 * float((1 + found["auto"]["overhead"]) / (1 + bound) - 1)


def page(lines: list[dict[str, Any]]) -> str:
    """The page of results: what is measured, a summary, and all rows."""
    autos = [line["planners"]["auto"] for line in lines]
    gaps = [gap_of(line) for line in lines if line["planners"]["auto"].get("overhead") is not None]
    refuted = sum(bool(one.get("infeasible")) for one in autos)
    firsts = [one["first_cpu_s"] or 0.0 for one in autos if one.get("overhead") is not None]
    under_1, under_5 = (sum(gap < most for gap in gaps) + refuted for most in (1.0, 5.0))
    counts = (
        f"Of {len(lines)} rows {len(gaps)} have a plan, and of {refuted} it is proven that none "
        f"fits. The gap is under 1 % (or nothing fits) in {under_1} of all rows, and under 5 % in "
        f"{under_5}. The first plan is there within 3 s of the processor in "
        f"{sum(first <= 3.0 for first in firsts)} of {len(firsts)}."
    )
    return "\n".join(
        [
            *PAGE_HEAD,
            "",
            *textwrap.wrap(counts, 100),
            "",
            "## By family",
            "",
            summary(lines),
            "## All rows",
            "",
            table(lines),
        ]
    )


def main() -> None:
    """Measure, or write the table of what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--only", default="")
    parser.add_argument(
        "--rows", default="", help="other rows: family:ops:budget, with commas between"
    )
    parser.add_argument("--planners", default=",".join(PLANNERS))
    parser.add_argument("--most-ops", type=int, default=10**9)
    parser.add_argument("--effort", type=float, default=20.0)
    parser.add_argument(
        "--again-above",
        type=float,
        default=float("inf"),
        help="run rows again that had less effort and whose gap is not below so many percent",
    )
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    if args.table is None:
        measure(args)
    else:
        args.table.write_text(page(read(args.results)))


if __name__ == "__main__":
    main()
