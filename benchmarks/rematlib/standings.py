"""How every planner does on the library: a performance profile and a table.

    python benchmarks/rematlib/standings.py run [GROUP or NAME ...] [--effort 0.5]
    python benchmarks/rematlib/standings.py page

`run` hands `schedsim sweep` an experiment an instance, at its four budgets, chains first and then
graphs, small ones first. It keeps what it needs of the rows in standings.jsonl after each instance:
run again after an interrupt, it goes on where it was; an instance that stands there with the same
effort is not run again. Searches end by counted work: the rows are the same on a busy machine.
`page` draws standings.svg and writes standings.md. A profile (Dolan & Moré 2002) says in what share
of the problems a planner's step takes at most so much more than the best known.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import check
from make import HERE

from schedsim.api import planner_takes
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
# Beyond so many ops a planner is skipped, for the reason that its rows give.
MOST_OPS = {"checkmate": 24, "moccasin": 120, "kusumoto": 300}
WHY = {
    "checkmate": "the first node of a MILP over all pairs of ops takes longer than the effort",
    "moccasin": "a model of intervals over all pairs of ops is not built within the effort",
    "kusumoto": "the lower sets of so many ops are not listed within the effort",
}
# Work of a search: of chains more, whose exact planners are over in an instant.
EFFORT = {"chain": 0.5, "graph": 0.1}
# A watchdog: rows that it ends say so, and none of those that are kept here was.
TIME_LIMIT_S = 300
LEVELS = (0.0, 0.001, 0.01, 0.05, 0.1)
ROWS = HERE / "standings.jsonl"


def skipped(row: Mapping[str, Any]) -> dict[str, str]:
    """The planners that an instance is too large for, each with the reason."""
    return {
        name: f"{row['num_ops']} ops, run up to {most}: {WHY[name]}"
        for name, most in MOST_OPS.items()
        if row["kind"] == "graph" and row["num_ops"] > most
    }


def experiment(row: Mapping[str, Any], effort: float) -> str:
    """The experiment file of an instance: what a planner spends is counted, never timed."""
    planners = []
    for name in CHAIN_PLANNERS if row["kind"] == "chain" else GRAPH_PLANNERS:
        if name not in skipped(row):
            counted = f", effort = {effort}" if "effort" in planner_takes(name)[1] else ""
            planners.append(f"{{name = {json.dumps(name)}{counted}}}")
    return "\n".join(
        (
            f"workloads = [{json.dumps(str(HERE / row['file']))}]",
            f"budgets = {json.dumps([str(budget) for budget in row['budgets_bytes']])}",
            f"planners = [{', '.join(planners)}]",
            f"effort = {effort}",
            f"time_limit_s = {TIME_LIMIT_S}",
        )
    )


def sweep(row: Mapping[str, Any], effort: float) -> list[dict[str, Any]]:
    """The results of each planner on an instance, a row a budget and planner, skipped ones too."""
    with tempfile.TemporaryDirectory() as folder:
        file, results = Path(folder, "experiment.toml"), Path(folder, "results.jsonl")
        file.write_text(experiment(row, effort))
        code = run_command(("sweep", str(file), "-o", str(results)))
        if code > 1:
            raise SystemExit(f"schedsim sweep ended with {code} on {row['name']}")
        found = [json.loads(line) for line in results.read_text().splitlines()]
    names = ("budget_bytes", "planner", "status", "makespan_s", "ended_by")
    rows = [
        {"instance": row["name"], "effort": effort, **{name: one.get(name) for name in names}}
        | ({"reason": one["error"]["message"]} if one["status"] == "error" else {})
        for one in found
    ]
    for budget in row["budgets_bytes"]:
        for name, why in skipped(row).items():
            told = {"budget_bytes": budget, "planner": name, "status": "skipped", "reason": why}
            rows.append({"instance": row["name"], "effort": effort, **told})
    return rows


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
                    fastest = one.get("any_schedule", one)
                    best[name, one["budget_bytes"]] = Fraction(fastest["makespan_s"])
    found: dict[str, list[float | None]] = {}
    for planner in CHAIN_PLANNERS if kind == "chain" else GRAPH_PLANNERS:
        times = {
            (row["instance"], row["budget_bytes"]): row.get("makespan_s")
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


def covered(
    index: Iterable[Mapping[str, Any]],
    counts: Mapping[str, tuple[int, int]],
    rows: Iterable[Mapping[str, Any]],
) -> str:
    """A sentence that says what was run."""
    run = {row["instance"] for row in rows}
    missing = [row for row in index if row["name"] not in run]
    if not missing:
        return (
            "All of it was run: " + " and ".join(f"{n} {k}s" for k, (_, n) in counts.items()) + "."
        )
    told = ", ".join(f"of {all_} {kind}s {some}" for kind, (some, all_) in counts.items())
    least, most = (f(row["num_ops"] for row in missing) for f in (min, max))
    names = ", ".join(f"`{row['name']}`" for row in missing[:12])
    more = f" and {len(missing) - 12} more" if len(missing) > 12 else ""
    return f"Run were {told}; not yet run are those of {least} to {most} ops {names}{more}."


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
    beyond = sum(
        "any_schedule" in one
        for row in index
        for one in row["best"]
        if one["budget_bytes"] in row["budgets_bytes"]
    )
    by_clock = sum(row.get("ended_by") == "clock" for row in rows)
    lines = [
        "# Standings",
        "",
        "What every planner makes of RematLib within a small, counted effort: in what share of",
        "the problems (an instance at one of its four budgets) its step takes at most so much more",
        "than the best known. " + covered(index, counts, rows),
        "The best known were found by the same planners with more effort, so that this is a table",
        "of what little effort gives. Those of chains are the best of any schedules:",
        f"at {beyond} problems one that is not persistent, which `frontier` and `rotor`, optimal",
        "over persistent schedules, do not look for.",
        "A problem for which a planner found nothing, or which is too large for it, counts as not",
        "solved; the reasons are in the rows.",
        "",
        f"Searches end by work (an effort of {EFFORT['chain']} on chains, of {EFFORT['graph']}",
        "on graphs, where 1 is about a second of one core), not by the clock: a busy machine gives",
        f"the same rows. Of {len(rows)} the watchdog of {TIME_LIMIT_S} s ended "
        f"{by_clock or 'none'}.",
        "Made by `python benchmarks/rematlib/standings.py`; the rows are in standings.jsonl.",
        "",
        "![performance profiles](standings.svg)",
        "",
        "Lines are moved apart by half a percent each, so that equal ones are seen.",
    ]
    for kind, found in panels.items():
        lines += ["", f"## {kind.capitalize()}s", "", *table(found)]
    lines += ["", "## Skipped", "", "| planner | problems | reason |", "|---|---:|---|"]
    for name, most in MOST_OPS.items():
        skips = sum(row["planner"] == name and row["status"] == "skipped" for row in rows)
        lines.append(f"| `{name}` | {skips} of more than {most} ops | {WHY[name]} |")
    (folder / "standings.md").write_text("\n".join(lines) + "\n")


def main(arguments: list[str]) -> None:
    """Run or draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["run", "page"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--effort", type=float, help="in place of that of the page")
    given = parser.parse_args(arguments)
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.is_file() else []
    if given.what == "page":
        page(rows, HERE)
        return
    index = check.read(HERE / "index.json")["instances"]
    done = {(row["instance"], row.get("effort")) for row in rows}
    asked = {kind: given.effort or effort for kind, effort in EFFORT.items()}
    chosen = [
        row
        for row in index
        if (row["name"], asked[row["kind"]]) not in done
        and (not given.names or {row["name"], row["group"]} & {*given.names})
    ]
    for number, row in enumerate(in_order(chosen), 1):
        rows = [one for one in rows if one["instance"] != row["name"]]
        rows += sweep(row, asked[row["kind"]])
        write(rows, index)
        print(f"{number} of {len(chosen)}: {row['name']}, {row['num_ops']} ops", file=sys.stderr)


def in_order(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Chains first, small ones first: what an interrupt leaves is said by one size."""
    return sorted(rows, key=lambda row: (row["kind"] != "chain", row["num_ops"], row["name"]))


def write(rows: Iterable[Mapping[str, Any]], index: Iterable[Mapping[str, Any]]) -> None:
    """Keep `rows`, in the order of `index`; an interrupt leaves the old file or the new one."""
    places = {row["name"]: place for place, row in enumerate(index)}
    kept = sorted(rows, key=lambda row: places[row["instance"]])
    beside = ROWS.with_suffix(".new")
    beside.write_text("".join(json.dumps(one) + "\n" for one in kept))
    beside.replace(ROWS)


if __name__ == "__main__":
    main(sys.argv[1:])
