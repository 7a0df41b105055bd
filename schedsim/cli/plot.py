"""``schedsim plot``: pictures of memory over time, of the trade-off, of a schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..api import pareto, try_plan
from ..chain import Chain
from ..errors import SchedsimError, UnsupportedError
from ..schedule import Schedule
from ..simulator import Simulation, simulate
from ..units import format_bytes
from .app import YES
from .inputs import Loaded, Source, budget_option, output_option, workload_options
from .show import working

SUFFIXES = (".svg", ".png", ".pdf")


@click.group("plot")
def command() -> None:
    """Draw a timeline, a Pareto curve or a schedule, as svg, png or pdf.

    \b
    schedsim plot timeline --layers 96 plan.json -o timeline.svg
    schedsim plot pareto --layers 96 -o pareto.svg
    schedsim plot schedule --layers 24 --mem 4GB -o schedule.png
    """


@command.command("timeline")
@workload_options
@budget_option(required=False)
@output_option("Picture to write.", required=True)
def timeline(source: Source, budget_bytes: int | None, output: str) -> int:
    """Live memory by category over the runs of a plan, of --mem, or of store-all."""
    _check_suffix(output)
    from ..plot import draw_timeline

    _, simulation, budget = _simulated(source, budget_bytes)
    _write(draw_timeline(simulation, budget_bytes=budget), output)
    return YES


@command.command("schedule")
@workload_options
@budget_option(required=False)
@output_option("Picture to write.", required=True)
def schedule(source: Source, budget_bytes: int | None, output: str) -> int:
    """Stages against runs: forwards, recomputed forwards and backwards."""
    _check_suffix(output)
    from ..plot import draw_schedule

    loaded, simulation, _ = _simulated(source, budget_bytes)
    _write(draw_schedule(loaded.workload, simulation), output)
    return YES


@command.command("pareto")
@workload_options
@click.option("--planners", help="Comma-separated names to draw beside the exact curve.")
@output_option("Picture to write.", required=True)
def pareto_(source: Source, planners: str | None, output: str) -> int:
    """Overhead against budget: the exact curve of a chain, and other planners' plans."""
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
        if plan.schedule is None:
            raise SchedsimError(
                f"no schedule fits {format_bytes(plan.budget_bytes)}", hint="raise the budget"
            )
        chosen, budget = plan.schedule, plan.budget_bytes
    return loaded, simulate(loaded.workload, chosen), budget


def _write(figure: Any, output: str) -> None:
    import io

    from ..files import write_atomically

    buffer = io.BytesIO()
    figure.savefig(buffer, format=Path(output).suffix[1:], bbox_inches="tight", dpi=150)
    write_atomically(output, buffer.getvalue())
