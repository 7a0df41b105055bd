"""``schedsim plot``: pictures of memory over time, of the trade-off, of a schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from ..api import try_plan
from ..dataflow.chain import Chain
from ..dataflow.graph import Graph
from ..errors import SchedsimError, UnsupportedError
from ..plans.pareto import pareto
from ..simulation.schedule import Schedule
from ..simulation.simulator import Simulation, simulate
from . import complete
from .allocators import allocator_options, check_allocator, of_plan
from .app import INTERRUPTED, YES, SuggestingGroup, help_without_command
from .inputs import (
    Loaded,
    Source,
    budget_option,
    capacity_option,
    given_schedule,
    output_option,
    schedule_of,
    schedule_option,
    workload_options,
)
from .pipeline_inputs import (
    PipelineOptions,
    explain_infeasible,
    make_pipeline,
    pipeline_options,
    plan_pipeline,
)
from .pipeline_inputs import (
    replay as replay_pipeline,
)
from .results import is_results, only_results
from .show import working

SUFFIXES = (".svg", ".png", ".pdf")


@click.group(
    "plot",
    cls=SuggestingGroup,
    invoke_without_command=True,
    subcommand_metavar="timeline|gantt|frontier|schedule|pipeline|sweep|validate [ARGS]...",
    short_help="Draw memory over a step, the trade-off curve, or a schedule.",
)
@click.pass_context
def command(ctx: click.Context) -> int:
    """Draw a timeline, queues in time, a frontier, a schedule or a validation: svg, png or pdf.

    \b
    schedsim plot timeline --layers 96 plan.json -o timeline.svg
    schedsim plot frontier --layers 96 -o frontier.svg
    schedsim plot schedule --layers 24 --mem 4GB -o schedule.png
    """
    return help_without_command(ctx)


@command.command("timeline", short_help="Live memory by category over the op runs.")
@budget_option(required=False)
@click.option(
    "--against",
    type=click.Choice(["runs", "time"]),
    default="runs",
    show_default=True,
    help="Every run as wide as the next, or as its time.",
)
@schedule_option
@capacity_option
@allocator_options
@output_option("Picture to write: .svg, .png or .pdf.", required=True)
@workload_options
def timeline(
    source: Source,
    budget: int | str | None,
    against: Literal["runs", "time"],
    schedule_file: str | None,
    capacities: dict[str, int] | None,
    allocator: str | None,
    alloc_conf: str | None,
    output: str,
) -> int:
    """Live memory by category over the runs of a plan, of --mem, or of store-all.

    On several queues, a panel for each memory pool, over time. With --allocator, or a plan made for
    one, on one queue, what it reserves.

    \b
    schedsim plot timeline --layers 96 plan.json -o timeline.svg
    schedsim plot timeline --layers 96 plan.json --allocator cuda-caching -o reserved.svg
    """
    _check_suffix(output)
    loaded, simulation, limit_bytes = _simulated(source, budget, schedule_file, capacities)
    if len(simulation.queue_names) == 1 and len(simulation.pool_names) == 1:
        from ..figures.plot import draw_timeline

        # A plan made for an allocator runs on a device of its budget; others may need more.
        limit = limit_bytes if of_plan(loaded.plan)[0] is not None else None
        found, _ = check_allocator(simulation, loaded.plan, limit, allocator, alloc_conf)
        figure = draw_timeline(
            simulation,
            budget_bytes=limit_bytes,
            against=against,
            allocation=found.get("device"),
        )
        _write(figure, output)
    else:
        from ..figures.gantt import draw_pools

        limits = {"device": limit_bytes} if limit_bytes is not None else {}
        _write(draw_pools(simulation, capacities=limits | (capacities or {})), output)
    return YES


@command.command("gantt", short_help="Queues and their runs over time, memory below.")
@budget_option(required=False)
@schedule_option
@capacity_option
@output_option("Picture to write: .svg, .png or .pdf.", required=True)
@workload_options
def gantt(
    source: Source,
    budget: int | str | None,
    schedule_file: str | None,
    capacities: dict[str, int] | None,
    output: str,
) -> int:
    """Queues as rows, runs as bars over time, and the memory of each pool below.

    \b
    schedsim plot gantt copies.json --schedule runs.txt -o gantt.svg
    """
    _check_suffix(output)
    from ..figures.gantt import draw_gantt

    _, simulation, limit_bytes = _simulated(source, budget, schedule_file, capacities)
    limits = {"device": limit_bytes} if limit_bytes is not None else {}
    _write(draw_gantt(simulation, capacities=limits | (capacities or {})), output)
    return YES


@command.command("schedule", short_help="Stages against runs: forward, recomputed, backward.")
@budget_option(required=False)
@output_option("Picture to write: .svg, .png or .pdf.", required=True)
@workload_options
def schedule(source: Source, budget: int | str | None, output: str) -> int:
    """Stages against runs: forwards, recomputed forwards and backwards.

    \b
    schedsim plot schedule --layers 24 --mem 4GB -o schedule.png
    """
    _check_suffix(output)
    from ..figures.plot import draw_schedule

    loaded, simulation, _ = _simulated(source, budget)
    _write(draw_schedule(loaded.workload, simulation), output)
    return YES


@command.command("frontier", short_help="Time against budget: the curve, its bound and its knee.")
@click.option(
    "--planners",
    shell_complete=complete.planner_list,
    help="Comma-separated names to draw beside the curve.",
)
@click.option("--order", help="Order of first runs of a graph: fixed (default) or free.")
@click.option("--time-limit", "time_limit_s", type=float, help="Seconds for a graph's curve [30].")
@click.option("--points", "num_points", type=int, help="Points to look for on a graph [24].")
@output_option("Picture to write, .svg, .png or .pdf; or the numbers: .json.", required=True)
@workload_options
def frontier(source: Source, planners: str | None, output: str, **more: Any) -> int:
    """Overhead against budget: exact on a chain; found and bounded on a graph; the knee marked.

    \b
    schedsim plot frontier --layers 24 --planners periodic,revolve -o frontier.svg
    schedsim plot frontier graph.json --order free --time-limit 60 -o frontier.json
    schedsim plot frontier results.jsonl -o best.svg
    """
    _check_suffix(output, (*SUFFIXES, ".json"))
    names = [name.strip() for name in planners.split(",")] if planners else []
    if names and Path(output).suffix == ".json":
        raise SchedsimError("--planners is for pictures", hint="leave it out, or write a .svg")
    options = {name: value for name, value in more.items() if value is not None}
    flags = {"order": "--order", "time_limit_s": "--time-limit", "num_points": "--points"}
    if is_results(source.files):
        given = {flags[name]: value for name, value in options.items()}
        file = only_results(source.files, {"--planners": planners, **given, **source.given_flags()})
        return _draw_results(file, output, best=True)
    loaded = source.read()
    if isinstance(loaded.workload, Chain) and options:
        raise UnsupportedError(
            f"{flags[next(iter(options))]} is for graphs, and {loaded.workload.name} is a chain",
            hint="leave it out: the frontier of a chain is exact",
        )
    budgets = None
    with working("computing the curve"):
        curves = [pareto(loaded.workload, **options)]
        if isinstance(loaded.workload, Graph):
            budgets = [point.budget_bytes for point in curves[0].points]
        for name in [] if curves[0].interrupted else names:
            curve = pareto(loaded.workload, name, budgets=budgets)
            if curve.points:
                curves.append(curve)
            else:
                click.echo(f"{name} left out: nothing fits at any budget of the curve", err=True)
    if Path(output).suffix == ".json":
        import json

        from ..files.atomic import write_atomically

        text = json.dumps(curves[0].to_dict(), indent=1, allow_nan=False)
        write_atomically(output, f"{text}\n".encode())
        click.echo(f"wrote {output}", err=True)
    else:
        from ..figures.plot import draw_pareto

        _write(draw_pareto(curves), output)
    return INTERRUPTED if curves[0].interrupted else YES


@command.command("sweep", short_help="Overhead against budget of every planner of a sweep.")
@click.argument("results_file", metavar="RESULTS.jsonl", shell_complete=complete.files)
@output_option("Picture to write: .svg, .png or .pdf.", required=True)
def sweep_(results_file: str, output: str) -> int:
    """Overhead against budget of every planner of a sweep, a panel for each workload.

    \b
    schedsim plot sweep results.jsonl -o results.svg
    """
    return _draw_results(results_file, output, best=False)


def _draw_results(results_file: str, output: str, *, best: bool) -> int:
    _check_suffix(output)
    from ..figures.plot_results import draw_best, draw_results
    from ..sweeps import read_rows

    rows = [row for row in read_rows(results_file) if row["status"] != "error"]
    if not rows:
        raise SchedsimError(f"{results_file} has no results yet", hint="schedsim sweep fills it")
    _write(draw_best(rows) if best else draw_results(rows), output)
    return YES


@command.command("pipeline", short_help="Devices over time, a numbered box per micro-batch.")
@output_option("Picture to write: .svg, .png or .pdf.", required=True)
@pipeline_options
def pipeline_(
    source: Source, budget: int | str | None, options: PipelineOptions, output: str
) -> int:
    """Devices over time: forwards, recomputed forwards and backwards by micro-batch.

    \b
    schedsim plot pipeline --layers 8 --stages 4 --micro-batches 8 -o pipeline.svg
    schedsim plot pipeline --layers 32 --stages 4 --micro-batches 8 --mem 40GB -o tight.svg
    """
    _check_suffix(output)
    from ..figures.plot_pipeline import draw_pipeline

    with working("planning the pipeline"):
        if options.replay is not None:
            found, _, _ = replay_pipeline(source, options, budget)
        else:
            made, _ = make_pipeline(source, options)
            found = plan_pipeline(made, options, budget)
    if found.run is not None:
        _write(draw_pipeline(found.run), output)
    return YES if found.feasible else explain_infeasible(found)


@command.command("validate", short_help="Memory predicted and measured, over each other.")
@click.argument("report_file", metavar="REPORT.json")
@output_option("Picture to write: .svg, .png or .pdf.", required=True)
def validate_(report_file: str, output: str) -> int:
    """Memory over the runs of a validated schedule, as predicted and as measured.

    \b
    schedsim plot validate report.json -o validation.svg
    """
    _check_suffix(output)
    from ..figures.plot import draw_validation
    from ..files.reader import parse_json

    document = parse_json(Path(report_file).read_bytes())
    if not isinstance(document, dict) or document.get("schema") != "schedsim.validation/1":
        raise SchedsimError(
            f"{report_file} is no validation report",
            hint="schedsim validate ... -o report.json writes one",
        )
    _write(draw_validation(document), output)
    return YES


def _check_suffix(output: str, known: tuple[str, ...] = SUFFIXES) -> None:
    suffix = Path(output).suffix
    if suffix not in known:
        able = f"{', '.join(known[:-1])} or {known[-1]}"
        raise SchedsimError(f"-o {output}: cannot draw {suffix!r}", hint=f"use {able}")


def _simulated(
    source: Source,
    budget: int | str | None,
    schedule_file: str | None = None,
    capacities: dict[str, int] | None = None,
) -> tuple[Loaded, Simulation, int | None]:
    """The workload with the schedule to draw: given, the plan's, that of --mem, or store-all."""
    loaded = source.read(plan=True)
    chosen = Schedule.store_all(loaded.workload)
    limit_bytes = None if budget is None else loaded.budget_bytes(budget)
    plan = loaded.plan
    if schedule_file is not None:
        chosen = given_schedule(loaded, schedule_file)
    elif plan is None and limit_bytes is not None:
        with working("planning"):
            plan = try_plan(loaded.workload, limit_bytes)
    if plan is not None:
        schedule_of(plan)
        limit_bytes = plan.budget_bytes if limit_bytes is None else limit_bytes
        return loaded, plan.simulate(loaded.given, capacities), limit_bytes
    return loaded, simulate(loaded.workload, chosen, capacities), limit_bytes


def _write(figure: Any, output: str) -> None:
    import io

    import matplotlib

    from ..files.atomic import write_atomically

    buffer, kind = io.BytesIO(), Path(output).suffix[1:]
    # No dates and no random ids: the same command writes the same file.
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with matplotlib.rc_context({"svg.hashsalt": "schedsim"}):
        figure.savefig(buffer, format=kind, bbox_inches="tight", dpi=150, metadata=dates)
    write_atomically(output, buffer.getvalue())
    click.echo(f"wrote {output}", err=True)
