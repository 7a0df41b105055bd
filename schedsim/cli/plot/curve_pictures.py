"""``schedsim plot frontier`` and ``sweep``: time against budget, for a workload or results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ...dataflow.chain import Chain
from ...dataflow.graph import Graph
from ...dataflow.recomputation_rules import check_beside_recompute
from ...errors import SchedsimError, UnsupportedError
from ...files.atomic import write_atomically
from ...plans.pareto import pareto
from ...sweeps.results import read_rows
from ..app import INTERRUPTED, YES
from ..given.loaded import read
from ..given.workload_options import workload_options
from ..given.workload_source import Source
from ..help import GroupedCommand
from ..options import complete
from ..options.files import output_option
from ..options.rule_options import FLAGS as RULE_FLAGS
from ..options.rule_options import rule_options, take_rules
from ..show import working
from ..shown.compared_results import is_results, only_results
from .pictures import SUFFIXES, check_suffix, write_picture


@click.command(
    "frontier",
    cls=GroupedCommand,
    short_help="Time against budget: the curve, its bound and its knee.",
)
@click.option(
    "--planners",
    shell_complete=complete.planner_list,
    help="Planners to draw beside the curve, separated by commas.",
)
@click.option("--order", help="Order of first runs of a graph: fixed (default) or free.")
@click.option("--time-limit", "time_limit_s", type=float, help="Seconds for a graph's curve [30].")
@click.option("--points", "num_points", type=int, help="Points to look for on a graph [24].")
@rule_options
@output_option("Picture to write, .svg, .png or .pdf; or the numbers: .json.", required=True)
@workload_options
def frontier(source: Source, planners: str | None, output: str, **more: Any) -> int:
    """Draw overhead against budget: exact for a chain, found and bounded for a graph.

    \b
    schedsim plot frontier --layers 24 --planners periodic,revolve -o frontier.svg
    schedsim plot frontier graph.json --order free --time-limit 60 -o frontier.json
    schedsim plot frontier results.jsonl -o best.svg
    """
    check_suffix(output, (*SUFFIXES, ".json"))
    names = [name.strip() for name in planners.split(",")] if planners else []
    if names and Path(output).suffix == ".json":
        raise SchedsimError("--planners is for pictures", hint="leave it out, or write a .svg")
    rules = take_rules(more)
    own = {"order", "time_limit_s", "num_points"}
    options = {name: value for name, value in more.items() if value is not None and name in own}
    flags = {"order": "--order", "time_limit_s": "--time-limit", "num_points": "--points"}
    if "recompute" in rules:
        check_beside_recompute(options, as_flags=True)
    if is_results(source.files):
        given = {flags[name]: value for name, value in options.items()}
        given |= {RULE_FLAGS[name]: value for name, value in rules.items()}
        file = only_results(source.files, {"--planners": planners, **given, **source.given_flags()})
        return _draw_results(file, output, best=True)
    loaded = read(source)
    if isinstance(loaded.workload, Chain) and options:
        raise UnsupportedError(
            f"{flags[next(iter(options))]} is for graphs, and {loaded.workload.name} is a chain",
            hint="leave it out: the frontier of a chain is exact",
        )
    budgets = None
    with working("computing the curve"):
        curves = [pareto(loaded.workload, **rules, **options)]
        if isinstance(loaded.workload, Graph):
            budgets = [point.budget_bytes for point in curves[0].points]
        for name in [] if curves[0].interrupted else names:
            curve = pareto(loaded.workload, name, budgets=budgets, **rules)
            if curve.points:
                curves.append(curve)
            else:
                click.echo(f"{name} left out: nothing fits at any budget of the curve", err=True)
    if Path(output).suffix == ".json":
        text = json.dumps(curves[0].to_dict(), indent=1, allow_nan=False)
        write_atomically(output, f"{text}\n".encode())
        click.echo(f"wrote {output}", err=True)
    else:
        from ...figures.plot import draw_pareto

        write_picture(draw_pareto(curves), output)
    return INTERRUPTED if curves[0].interrupted else YES


@click.command(
    "sweep", cls=GroupedCommand, short_help="Overhead against budget of every planner of a sweep."
)
@click.argument("results_file", metavar="RESULTS.jsonl", shell_complete=complete.files)
@output_option("Picture to write: .svg, .png or .pdf.", required=True)
def sweep(results_file: str, output: str) -> int:
    """Draw overhead against budget of every planner of a sweep, a panel for each workload.

    \b
    schedsim plot sweep results.jsonl -o results.svg
    """
    return _draw_results(results_file, output, best=False)


def _draw_results(results_file: str, output: str, *, best: bool) -> int:
    check_suffix(output)
    from ...figures.plot_results import draw_best, draw_results

    rows = [row for row in read_rows(results_file) if row["status"] != "error"]
    if not rows:
        raise SchedsimError(f"{results_file} has no results yet", hint="schedsim sweep fills it")
    write_picture(draw_best(rows) if best else draw_results(rows), output)
    return YES
