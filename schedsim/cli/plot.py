"""``schedsim plot``: pictures of memory over time, of the trade-off, of a schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .._pareto import pareto
from ..api import try_plan
from ..chain import Chain
from ..errors import SchedsimError, UnsupportedError
from ..schedule import Schedule
from ..simulator import Simulation, simulate
from .app import YES, SuggestingGroup, help_without_command
from .inputs import (
    Loaded,
    Source,
    budget_option,
    output_option,
    schedule_of,
    workload_options,
)
from .show import working

SUFFIXES = (".svg", ".png", ".pdf")


@click.group(
    "plot",
    cls=SuggestingGroup,
    invoke_without_command=True,
    subcommand_metavar="timeline|pareto|schedule [ARGS]...",
    short_help="Draw memory over a step, the trade-off curve, or a schedule.",
)
@click.pass_context
def command(ctx: click.Context) -> int:
    """Draw a timeline, a Pareto curve or a schedule, as svg, png or pdf.

    \b
    schedsim plot timeline --layers 96 plan.json -o timeline.svg
    schedsim plot pareto --layers 96 -o pareto.svg
    schedsim plot schedule --layers 24 --mem 4GB -o schedule.png
    """
    return help_without_command(ctx)


@command.command("timeline", short_help="Live memory by category over the op runs.")
@budget_option(required=False)
@output_option("Picture to write: .svg, .png or .pdf.", required=True)
@workload_options
def timeline(source: Source, budget_bytes: int | None, output: str) -> int:
    """Live memory by category over the runs of a plan, of --mem, or of store-all.

    \b
    schedsim plot timeline --layers 96 plan.json -o timeline.svg
    """
    _check_suffix(output)
    from ..plot import draw_timeline

    _, simulation, budget = _simulated(source, budget_bytes)
    _write(draw_timeline(simulation, budget_bytes=budget), output)
    return YES


@command.command("schedule", short_help="Stages against runs: forward, recomputed, backward.")
@budget_option(required=False)
@output_option("Picture to write: .svg, .png or .pdf.", required=True)
@workload_options
def schedule(source: Source, budget_bytes: int | None, output: str) -> int:
    """Stages against runs: forwards, recomputed forwards and backwards.

    \b
    schedsim plot schedule --layers 24 --mem 4GB -o schedule.png
    """
    _check_suffix(output)
    from ..plot import draw_schedule

    loaded, simulation, _ = _simulated(source, budget_bytes)
    _write(draw_schedule(loaded.workload, simulation), output)
    return YES


@command.command("pareto", short_help="Time against budget: the exact curve and other planners.")
@click.option("--planners", help="Comma-separated names to draw beside the exact curve.")
@output_option("Picture to write: .svg, .png or .pdf.", required=True)
@workload_options
def pareto_(source: Source, planners: str | None, output: str) -> int:
    """Overhead against budget: the exact curve of a chain, and other planners' plans.

    \b
    schedsim plot pareto --layers 24 --planners periodic,revolve -o pareto.svg
    """
    _check_suffix(output)
    from ..plot import draw_pareto

    loaded = source.read()
    if not isinstance(loaded.workload, Chain):
        raise UnsupportedError(
            f"{loaded.workload.name} is a graph; exact curves are for chains",
            hint="use --granularity layer or block",
        )
    with working("computing the curve"):
        curves = [pareto(loaded.workload)]
        for name in planners.split(",") if planners else ():
            curves.append(pareto(loaded.workload, name.strip()))
    _write(draw_pareto(curves), output)
    return YES


def _check_suffix(output: str) -> None:
    suffix = Path(output).suffix
    if suffix not in SUFFIXES:
        raise SchedsimError(f"-o {output}: cannot draw {suffix!r}", hint="use .svg, .png or .pdf")


def _simulated(source: Source, budget_bytes: int | None) -> tuple[Loaded, Simulation, int | None]:
    """The workload with the schedule to draw: the plan's, that of --mem, or store-all."""
    loaded = source.read(plan=True)
    chosen, budget = Schedule.store_all(loaded.workload), budget_bytes
    plan = loaded.plan
    if plan is None and budget_bytes is not None:
        with working("planning"):
            plan = try_plan(loaded.workload, budget_bytes)
    if plan is not None:
        chosen = schedule_of(plan)
        budget = plan.budget_bytes if budget_bytes is None else budget_bytes
    return loaded, simulate(loaded.workload, chosen), budget


def _write(figure: Any, output: str) -> None:
    import io

    import matplotlib

    from ..files import write_atomically

    buffer, kind = io.BytesIO(), Path(output).suffix[1:]
    # No dates and no random ids: the same command writes the same file.
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with matplotlib.rc_context({"svg.hashsalt": "schedsim"}):
        figure.savefig(buffer, format=kind, bbox_inches="tight", dpi=150, metadata=dates)
    write_atomically(output, buffer.getvalue())
    click.echo(f"wrote {output}", err=True)
