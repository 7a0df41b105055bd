"""Every graph planner on a folder of graphs, at fractions of the store-all peak; a table, a figure.

    python benchmarks/bench_graph_planners.py GRAPHS --results runs.jsonl
        [--best-known best-known.json] [--effort 20 | --time-limit 10] [--seeds 5] [--only PART]
        [--planners A,B]
    python benchmarks/bench_graph_planners.py GRAPHS --results runs.jsonl --table graphs.md \
        --figure graphs.svg

GRAPHS holds ``schedsim.graph/1`` files. Every run is one line of the results file, so that a run
that was stopped goes on where it was; the table and the figure are drawn from that file alone.
`auto` takes every seed, unless its plan is proven optimal. An effort counts work instead of
seconds, and says the same on a busy machine; 20 is about ten seconds of two cores.
`best-known.json` is a list of objects with `graph`, `budget_fraction`, `budget_bytes` and, where
known, `best_overhead_percent`: it sets the budgets, and stands beside ours.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from pathlib import Path
from typing import Any

import schedsim
from schedsim import Graph, Schedule, simulate
from schedsim.api import try_plan
from schedsim.errors import SchedsimError

# (column, planner, options)
COLUMNS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("auto", "auto", {}),
    ("free order", "auto", {"order": "free"}),
    ("local_search", "local_search", {"order": "fixed"}),
    ("cuts", "cuts", {}),
    ("checkmate", "checkmate", {}),
    ("moccasin", "moccasin", {}),
    ("dtr", "dtr", {}),
    ("dtr, best of 7", "dtr", {"heuristic": "all"}),
    ("chen", "chen_articulation", {"candidates": "all"}),
    ("kusumoto", "kusumoto", {"family": "approximate", "objective": "time"}),
    ("saved_bytes", "saved_bytes", {}),
)
ANYTIME = ("auto", "local_search", "cuts", "checkmate", "moccasin")


def pairs(folder: Path, best_known: Path | None) -> list[dict[str, Any]]:
    """Graphs and budgets, in the order of the list of best known ones or by name."""
    if best_known is not None:
        rows = json.loads(best_known.read_text())
        rows = [row for row in rows if (folder / f"{row['graph']}.json").exists()]
        return sorted(rows, key=lambda row: (row["n"], row["graph"], -row["budget_fraction"]))
    found = []
    for file in sorted(folder.glob("*.json")):
        graph = schedsim.load(file)
        if isinstance(graph, Graph):
            peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
            found += [
                {"graph": file.stem, "budget_fraction": f, "budget_bytes": int(f * peak)}
                for f in (0.9, 0.8, 0.7, 0.5, 0.3)
            ]
    return found


def run(
    graph: Graph, pair: dict[str, Any], column: str, seed: int, limit: dict[str, float]
) -> dict[str, Any]:
    """One planner on one graph and budget, as a line of the results file."""
    _, planner, options = next(entry for entry in COLUMNS if entry[0] == column)
    if planner in ANYTIME:
        options = {**options, **limit, "seed": seed}
    row = {
        "graph": pair["graph"],
        "budget_fraction": pair["budget_fraction"],
        "column": column,
        "seed": seed,
        "time_limit_s": limit.get("time_limit_s") if planner in ANYTIME else None,
    }
    if planner in ANYTIME and "effort" in limit:
        row["effort"] = limit["effort"]
    started = time.perf_counter()
    try:
        plan = try_plan(graph, pair["budget_bytes"], planner, **options)
    except SchedsimError as error:
        return {**row, "status": "refused", "why": str(error), "s": time.perf_counter() - started}
    return {
        **row,
        "status": plan.status,
        "overhead": plan.overhead,
        "bound": plan.lower_bound_s / plan.store_all_s - 1,
        "gap": plan.gap,
        "peak_bytes": plan.peak_bytes,
        "infeasible": "proven" if plan.proven_infeasible else None,
        "s": time.perf_counter() - started,
    }


def measure(args: argparse.Namespace) -> None:
    """Run what the results file lacks."""
    done = {key(row) for row in read(args.results)}
    warmed: set[str] = set()
    limit = {"effort": args.effort}
    if args.time_limit is not None:
        limit = {"time_limit_s": args.time_limit}
    for pair in pairs(args.graphs, args.best_known):
        if args.only not in pair["graph"]:
            continue
        graph = schedsim.load(args.graphs / f"{pair['graph']}.json")
        assert isinstance(graph, Graph)
        for column, planner, _ in COLUMNS:
            if args.planners and column not in args.planners.split(","):
                continue
            for seed in range(args.seeds if planner == "auto" else 1):
                if (pair["graph"], pair["budget_fraction"], column, seed) in done:
                    continue
                if column not in warmed:  # kernels are compiled outside the times
                    small = tiny()
                    peak = simulate(small, Schedule.store_all(small)).peak_bytes
                    run(small, {**pair, "budget_bytes": peak - 1}, column, 0, {"effort": 0.2})
                    warmed.add(column)
                row = run(graph, pair, column, seed, limit)
                proven = row["status"] == "optimal" or row.get("infeasible") is not None
                with args.results.open("a") as file:
                    file.write(json.dumps({**row, "machine": machine()}) + "\n")
                overhead = row.get("overhead")
                shown = "-" if overhead is None else f"{100 * overhead:.4f} %"
                print(
                    f"{row['graph']:<20} {row['budget_fraction']:.0%} {column:<15} "
                    f"{row['status']:<10} {shown:>11} {row['s']:6.1f} s",
                    flush=True,
                )
                if proven:  # the same for every seed
                    break


def tiny() -> Graph:
    """A graph for which every planner has something to do."""
    chain = schedsim.Chain.from_arrays(
        "tiny", 1, forward_s=[1] * 3, backward_s=[1] * 3, output_bytes=[1] * 3, saved_bytes=[1] * 3
    )
    return chain.graph


def machine() -> str:
    """The machine and versions that the numbers are from."""
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def key(row: dict[str, Any]) -> tuple[str, float, str, int]:
    """The fields that tell a line of the results file from all others."""
    return (row["graph"], row["budget_fraction"], row["column"], row["seed"])


def read(results: Path) -> list[dict[str, Any]]:
    """The lines of the results file; the last one may be cut off."""
    rows = []
    for line in results.read_text().splitlines() if results.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            print("a line of the results that was cut off is left out")
    return rows


def table(args: argparse.Namespace) -> str:
    """Overhead in percent by pair and planner, as Markdown."""
    rows: dict[tuple[str, float, str], list[dict[str, Any]]] = {}
    for row in read(args.results):
        rows.setdefault(key(row)[:3], []).append(row)
    known = {(p["graph"], p["budget_fraction"]): p for p in pairs(args.graphs, args.best_known)}
    titles = [column for column, _, _ in COLUMNS]
    head = ["graph", "ops", "budget", "best known", "bound", *titles]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * 2 + "---:|" * (len(head) - 2)]
    for (name, fraction), pair in known.items():
        if not any((name, fraction, title) in rows for title in titles):
            continue
        best = pair.get("best_overhead_percent")
        cells = [name, str(pair.get("n", "")), f"{fraction:.0%}".replace("%", " %")]
        cells.append("-" if best is None else f"{best:.2f}")
        fixed = [
            *rows.get((name, fraction, "auto"), []),
            *rows.get((name, fraction, "local_search"), []),
            *rows.get((name, fraction, "cuts"), []),
        ]
        bounds = [row["bound"] for row in fixed if row.get("bound") is not None]
        never = any("proven" in (row.get("infeasible") or "") for row in fixed)
        cells.append("none fits" if never else f"{100 * max(bounds, default=0.0):.2f}")
        cells += [cell(rows.get((name, fraction, title), [])) for title in titles]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def cell(rows: list[dict[str, Any]]) -> str:
    """Overhead in percent; of several seeds the least and the most; bold where proven optimal."""
    found = sorted(100 * row["overhead"] for row in rows if row.get("overhead") is not None)
    if not found:
        return "refused" if any(row["status"] == "refused" for row in rows) else "-"
    text = f"{found[0]:.2f}"
    if len(rows) > 1:
        text = f"{found[0]:.2f} .. " + (f"{found[-1]:.2f}" if len(found) == len(rows) else "-")
        text = (
            f"{found[0]:.2f}" if found[-1] - found[0] < 0.005 and len(found) == len(rows) else text
        )
    return f"**{text}**" if any(row["status"] == "optimal" for row in rows) else text


def figure(args: argparse.Namespace) -> None:
    """Extra time over the proven bound, by planner: each dot is a graph and a budget."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = read(args.results)
    bound: dict[tuple[str, float], float] = {}
    for row in rows:
        if row.get("bound") is not None and row["column"] in ("auto", "local_search", "cuts"):
            at = (row["graph"], row["budget_fraction"])
            bound[at] = max(bound.get(at, 0.0), row["bound"])
    titles = [column for column, _, _ in COLUMNS if column != "free order"]
    chart = Figure(figsize=(8.0, 4.2), layout="constrained")
    FigureCanvasAgg(chart)
    axes = chart.add_subplot()
    least, most = 0.005, 300.0
    solvable = {
        (row["graph"], row["budget_fraction"])
        for row in rows
        if row.get("overhead") is not None and row["column"] in titles
    }
    for number, title in enumerate(titles):
        mine = [row for row in rows if row["column"] == title and row["seed"] == 0]
        gaps = [
            100 * ((1 + row["overhead"]) / (1 + bound[row["graph"], row["budget_fraction"]]) - 1)
            for row in mine
            if row.get("overhead") is not None
        ]
        jitter = [number + 0.28 * math.sin(37.0 * k) for k in range(len(gaps))]
        axes.scatter(
            jitter, [min(most, max(least, gap)) for gap in gaps], s=14, alpha=0.75, linewidths=0
        )
        axes.annotate(
            f"{len(gaps)} of {len(solvable)}", (number, most * 1.5), ha="center", fontsize=8
        )
    axes.set_yscale("log")
    axes.set_ylim(least * 0.7, most * 3)
    axes.set_yticks([0.005, 0.01, 0.1, 1, 10, 100], ["0", "0.01", "0.1", "1", "10", "100"])
    axes.set_xticks(range(len(titles)), titles, rotation=25, ha="right")
    axes.set_ylabel("step time over the proven bound, %")
    axes.set_title("Fixed order: plans found, and how far from optimal they can be", fontsize=10)
    axes.grid(axis="y", alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    chart.savefig(args.figure)


def main() -> None:
    """Measure, or draw what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--best-known", type=Path)
    parser.add_argument("--effort", type=float, default=20.0)
    parser.add_argument("--time-limit", type=float)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--planners", default="")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    if args.best_known is None and (args.graphs / "best-known.json").exists():
        args.best_known = args.graphs / "best-known.json"
    if args.table is None and args.figure is None:
        measure(args)
    if args.table is not None:
        args.table.write_text(table(args))
    if args.figure is not None:
        figure(args)


if __name__ == "__main__":
    main()
