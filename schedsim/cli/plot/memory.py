"""``schedsim plot timeline``, ``gantt`` and ``schedule``: one step, over its runs or over time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import click

from ...allocators import EXACT
from ...api import try_plan
from ...dataflow.chain import Chain
from ...dataflow.graph import Graph
from ...errors import SchedsimError
from ...simulation.schedule import Schedule
from ...simulation.simulator import Simulation, simulate
from ..app import YES
from ..given.loaded import Loaded, given_schedule, read, schedule_of
from ..given.workload_options import workload_options
from ..given.workload_source import Source
from ..help import GroupedCommand
from ..options.allocator_options import allocator_options, read_options
from ..options.files import output_option, schedule_option
from ..options.limits import budget_option, capacity_option
from ..show import working
from ..shown.allocations import allocations_with_problems, of_plan
from .pictures import check_suffix, write_picture


@click.command(
    "timeline", cls=GroupedCommand, short_help="Live memory by category over the op runs."
)
@budget_option(required=False)
@click.option(
    "--against",
    type=click.Choice(["runs", "time"]),
    default="runs",
    show_default=True,
    help="Give every run the same width (runs), or a width by its time (time).",
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
    """Draw live memory by category over the runs of a plan, of --mem, or of store-all.

    Several streams give a panel for each memory pool, over time. On one stream, --allocator or a
    plan made for an allocator adds the bytes that the allocator reserves.

    \b
    schedsim plot timeline --layers 96 plan.json -o timeline.svg
    schedsim plot timeline --layers 96 plan.json --allocator cuda-caching -o reserved.svg
    """
    check_suffix(output)
    memory: dict[str, Any] = {
        "allocator": allocator or EXACT,
        "options": read_options(allocator, alloc_conf),
    }
    loaded, simulation, limit_bytes = _simulated(
        source, budget, schedule_file, capacities, draws_runs=True, **memory
    )
    if len(simulation.stream_names) == 1 and len(simulation.pool_names) == 1:
        from ...figures.plot import draw_timeline

        # A plan made for an allocator runs on a device as large as its budget; other plans may need
        # more.
        limit = limit_bytes if of_plan(loaded.plan)[0] is not None else None
        found, _ = allocations_with_problems(simulation, loaded.plan, limit, allocator, alloc_conf)
        figure = draw_timeline(
            simulation,
            budget_bytes=limit_bytes,
            against=against,
            allocation=found.get("device"),
        )
        write_picture(figure, output)
    else:
        if against != "runs" or allocator is not None:
            flag = "--allocator" if allocator is not None else f"--against {against}"
            raise SchedsimError(
                f"{flag} needs a single stream, and {loaded.workload.name} is drawn over time",
                hint=f"leave {flag} out",
            )
        from ...figures.gantt import draw_pools

        limits = {"device": limit_bytes} if limit_bytes is not None else {}
        write_picture(draw_pools(simulation, capacities=limits | (capacities or {})), output)
    return YES


@click.command(
    "gantt", cls=GroupedCommand, short_help="Streams and their runs over time, memory below."
)
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
    """Draw streams as rows, runs as bars over time, and the memory of each pool below.

    \b
    schedsim plot gantt copies.json --schedule runs.txt -o gantt.svg
    """
    check_suffix(output)
    from ...figures.gantt import draw_gantt

    _, simulation, limit_bytes = _simulated(source, budget, schedule_file, capacities)
    limits = {"device": limit_bytes} if limit_bytes is not None else {}
    write_picture(draw_gantt(simulation, capacities=limits | (capacities or {})), output)
    return YES


@click.command(
    "schedule", cls=GroupedCommand, short_help="Stages against runs: forward, recomputed, backward."
)
@budget_option(required=False)
@output_option("Picture to write: .svg, .png or .pdf.", required=True)
@workload_options
def schedule(source: Source, budget: int | str | None, output: str) -> int:
    """Draw stages against runs: forwards, recomputed forwards and backwards.

    \b
    schedsim plot schedule --layers 24 --mem 4GB -o schedule.png
    """
    check_suffix(output)
    from ...figures.plot import draw_schedule

    loaded, simulation, _ = _simulated(source, budget)
    write_picture(draw_schedule(loaded.workload, simulation), output)
    return YES


def _simulated(
    source: Source,
    budget: int | str | None,
    schedule_file: str | None = None,
    capacities: dict[str, int] | None = None,
    allocator: str = EXACT,
    options: dict[str, Any] | None = None,
    draws_runs: bool = False,
) -> tuple[Loaded, Simulation, int | None]:
    """The workload and the schedule to draw: given, the plan's, made for --mem, or store-all.

    A picture that draws one stream over its runs (`draws_runs`) takes no capacities. They are
    refused before the simulation, which might get stuck within them.
    """
    loaded = read(source, plan=True)
    chosen = Schedule.store_all(loaded.workload)
    limit_bytes = None if budget is None else loaded.budget_bytes(budget)
    plan = loaded.plan
    if schedule_file is not None:
        chosen = given_schedule(loaded, schedule_file)
    elif plan is None and limit_bytes is not None:
        with working("planning"):
            plan = try_plan(
                loaded.workload, limit_bytes, allocator=allocator, allocator_options=options
            )
        loaded = replace(loaded, plan=plan)
    if plan is not None:
        chosen = schedule_of(plan)
        limit_bytes = plan.budget_bytes if limit_bytes is None else limit_bytes
        if draws_runs and capacities is not None:
            _check_has_pools(plan.setting.workload(loaded.given, chosen))
        return loaded, plan.simulate(loaded.given, capacities), limit_bytes
    if draws_runs and capacities is not None:
        _check_has_pools(loaded.workload)
    return loaded, simulate(loaded.workload, chosen, capacities), limit_bytes


def _check_has_pools(workload: Chain | Graph) -> None:
    """Refuse --capacity for a workload of one stream and one memory pool."""
    arrays = workload.graph.arrays
    if len(arrays.stream_names) == 1 and len(arrays.pool_names) == 1:
        raise SchedsimError(
            "--capacity needs several streams or memory pools, and "
            f"{workload.name} has one of each",
            hint="--mem draws a limit",
        )
