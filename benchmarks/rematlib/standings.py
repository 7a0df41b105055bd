"""How every planner does on the library: a performance profile and a table.

    python benchmarks/rematlib/standings.py run [GROUP or NAME ...] [--every 4] [--effort 0.3]
    python benchmarks/rematlib/standings.py page

`run` hands `schedsim sweep` an experiment an instance, at its four budgets, and keeps what it needs
of the rows in standings.jsonl; what stands there already is not run again. `page` draws
standings.svg and writes standings.md. A profile (Dolan & Moré 2002) says in what share of the
problems a planner's step takes at most so much more than the best known.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import check
from make import HERE

from schedsim.cli.app import run as run_command

# Not `store_all`: every budget is below its peak.
CHAIN_PLANNERS = (
    "auto", "frontier", "rotor", "periodic", "chen_sqrt", "chen_greedy", "bisection", "revolve",
    "recompute_all",
)  # fmt: skip
GRAPH_PLANNERS = (
    "auto", "local_search", "hierarchical", "cuts", "checkmate", "moccasin", "dtr",
    "chen_articulation", "kusumoto", "saved_bytes",
)  # fmt: skip
# Programmes over all pairs of ops: beyond this they do not begin within a small effort.
MOST_OPS = {"checkmate": 70, "moccasin": 120, "kusumoto": 300}
LEVELS = (0.0, 0.001, 0.01, 0.05, 0.1)
ROWS = HERE / "standings.jsonl"


def experiment(row: Mapping[str, Any], effort: float) -> str:
    """The experiment file of an instance."""
    planners = CHAIN_PLANNERS if row["kind"] == "chain" else GRAPH_PLANNERS
    chosen = [name for name in planners if row["num_ops"] <= MOST_OPS.get(name, 10**9)]
    return "\n".join(
        (
            f"workloads = [{json.dumps(str(HERE / row['file']))}]",
            f"budgets = {json.dumps([str(budget) for budget in row['budgets_bytes']])}",
            f"planners = {json.dumps(chosen)}",
            f"effort = {effort}",
            "max_moves = 20000",
            "time_limit_s = 60",
        )
    )


def sweep(row: Mapping[str, Any], effort: float) -> list[dict[str, Any]]:
    """What each planner makes of an instance."""
    with tempfile.TemporaryDirectory() as folder:
        file, results = Path(folder, "experiment.toml"), Path(folder, "results.jsonl")
        file.write_text(experiment(row, effort))
        code = run_command(("sweep", str(file), "-o", str(results)))
        if code > 1:
            raise SystemExit(f"schedsim sweep ended with {code} on {row['name']}")
        found = [json.loads(line) for line in results.read_text().splitlines()]
    names = ("budget_bytes", "planner", "status", "makespan_s")
    return [
        {"instance": row["name"], **{name: one.get(name) for name in names}}
        | ({"error": one["error"]["type"]} if one["status"] == "error" else {})
        for one in found
    ]


def ratios(rows: Sequence[Mapping[str, Any]], kind: str) -> dict[str, list[float | None]]:
    """By planner, its times over the best known; ``None`` where it found nothing or did not run.

    Problems are those of the instances in `rows`: each budget at which a schedule is known.
    """
    index = {row["name"]: row for row in check.read(HERE / "index.json")["instances"]}
    best = {}
    for name in dict.fromkeys(row["instance"] for row in rows):
        if index[name]["kind"] == kind:
            for one in index[name]["best"]:
                if one["budget_bytes"] in index[name]["budgets_bytes"] and one["makespan_s"]:
                    best[name, one["budget_bytes"]] = Fraction(one["makespan_s"])
    found: dict[str, list[float | None]] = {}
    for planner in CHAIN_PLANNERS if kind == "chain" else GRAPH_PLANNERS:
        times = {
            (row["instance"], row["budget_bytes"]): row["makespan_s"]
            for row in rows
            if row["planner"] == planner
        }
        found[planner] = [
            None if times.get(problem) is None else float(Fraction(times[problem]) / known)
            for problem, known in best.items()
        ]
    return found


def share_within(values: Sequence[float | None], level: float) -> float:
    """The share of problems in which the step takes at most `level` more than the best known."""
    within = sum(value is not None and value <= 1 + level + 1e-12 for value in values)
    return within / len(values)


def table(found: Mapping[str, Sequence[float | None]]) -> list[str]:
    """Rows of a table in Markdown, the planner that is best most often first."""
    heads = ["the best known", *(f"within {level:.1%}".replace("%", " %") for level in LEVELS[1:])]
    lines = [
        f"| planner | {' | '.join(heads)} | found a schedule |",
        "|---|" + "---:|" * (len(heads) + 1),
    ]
    order = sorted(found, key=lambda name: [-share_within(found[name], at) for at in LEVELS])
    for name in order:
        cells = [f"{share_within(found[name], level):.0%}" for level in LEVELS]
        cells.append(f"{share_within(found[name], float('inf')):.0%}")
        lines.append(f"| `{name}` | {' | '.join(cell.replace('%', ' %') for cell in cells)} |")
    return lines


def draw(panels: Mapping[str, Mapping[str, Sequence[float | None]]], path: Path) -> None:
    """The profiles, a panel a kind of workload; lines that lie on each other are moved apart."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "standings"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(panels), figsize=(11, 4.4), sharey=True)
    for axis, (kind, found) in zip(axes, panels.items(), strict=True):
        for number, (name, values) in enumerate(found.items()):
            known = sorted(100 * (value - 1) for value in values if value is not None)
            x = [max(at, 0.01) for at in (0.01, *known, 200)]
            y = [100 * (i + 1) / len(values) for i in range(len(known))]
            first = sum(at <= 0.01 for at in known)
            y = [100 * first / len(values), *y, y[-1] if y else 0]
            y = [max(at, 100 * first / len(values)) - 0.45 * number for at in y]
            style = ("-", "--", ":", "-.")[number // 6 % 4]
            axis.step(x, y, style, where="post", label=name, color=f"C{number % 10}", lw=1.6)
        axis.set_xscale("log")
        axis.set_xlim(0.01, 200)
        axis.set_xlabel("step time over the best known, % (left edge: at most 0.01)")
        axis.set_title(f"{kind}s: {len(next(iter(found.values())))} problems")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, loc="lower right")
    axes[0].set_ylabel("problems, %")
    axes[0].set_ylim(-6, 103)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def page(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """The table and the figure of `rows`."""
    panels = {kind: ratios(rows, kind) for kind in ("chain", "graph")}
    draw(panels, folder / "standings.svg")
    index = check.read(HERE / "index.json")["instances"]
    counts = {
        kind: (
            len(
                {row["instance"] for row in rows} & {r["name"] for r in index if r["kind"] == kind}
            ),
            sum(row["kind"] == kind for row in index),
        )
        for kind in panels
    }
    lines = [
        "# Standings",
        "",
        "What every planner makes of RematLib within a small, counted effort: in what share of",
        "the problems (an instance at one of its four budgets) its step takes at most so much more",
        f"than the best known. Of {counts['chain'][1]} chains {counts['chain'][0]} were run, of "
        f"{counts['graph'][1]} graphs {counts['graph'][0]}, evenly spread.",
        "The best known were found by the same planners with more effort, so that this is a table",
        "of what little effort gives. A problem that a planner was not run on, or found nothing",
        "for, counts as not solved; "
        + ", ".join(f"`{name}` is run up to {most} ops" for name, most in MOST_OPS.items())
        + ".",
        "Made by `python benchmarks/rematlib/standings.py`; the rows are in standings.jsonl.",
        "",
        "![performance profiles](standings.svg)",
        "",
        "Lines are moved apart by half a percent each, so that equal ones are seen.",
    ]
    for kind, found in panels.items():
        lines += ["", f"## {kind.capitalize()}s", "", *table(found)]
    (folder / "standings.md").write_text("\n".join(lines) + "\n")


def main(arguments: list[str]) -> None:
    """Run or draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["run", "page"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--every", type=int, default=1, help="take each so many-th instance")
    parser.add_argument("--effort", type=float, default=0.3)
    given = parser.parse_args(arguments)
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.is_file() else []
    if given.what == "page":
        page(rows, HERE)
        return
    done = {row["instance"] for row in rows}
    index = check.read(HERE / "index.json")["instances"]
    chosen = [
        row for row in index if not given.names or {row["name"], row["group"]} & {*given.names}
    ]
    for row in chosen[:: given.every]:
        if row["name"] not in done and "budgets_bytes" in row:
            rows += sweep(row, given.effort)
            ROWS.write_text("".join(json.dumps(one) + "\n" for one in rows))
            print(row["name"], file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
