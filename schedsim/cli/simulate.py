"""``schedsim simulate``: replay a plan, or any schedule, and check what it claims."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ..allocators import EXACT, Allocation
from ..errors import SchedsimError
from ..files import write_atomically
from ..plans import Plan
from ..schedule import Schedule
from ..simulator import Simulation, simulate
from ..units import format_bytes, format_bytes_short, format_seconds
from .allocators import (
    allocations,
    allocator_options,
    describe,
    of_plan,
    read_options,
)
from .allocators import document as allocation_document
from .allocators import problems as allocation_problems
from .app import NO, YES
from .inputs import (
    Loaded,
    Source,
    budget_option,
    json_option,
    output_option,
    schedule_of,
    workload_options,
)
from .show import percent, print_facts, print_json, print_table


@click.command("simulate", short_help="Replay a plan or a list of op names, and check it.")
@budget_option(required=False)
@click.option("--schedule", "schedule_file", metavar="FILE", help="Op names; - reads stdin.")
@allocator_options
@json_option
@output_option("Write the result to FILE, as JSON.")
@workload_options
def command(
    source: Source,
    budget_bytes: int | None,
    schedule_file: str | None,
    allocator: str | None,
    alloc_conf: str | None,
    as_json: bool,
    output: str | None,
) -> int:
    """Replay the schedule of a plan, or one from a list of op names.

    Exit code 1 where the plan belongs to another workload, where its peak or step time is not what
    the replay gives, or where the budget is passed.

    \b
    schedsim simulate --layers 96 plan.json
    echo "F0 F1 loss B1 F0 B0" | schedsim simulate chain.json --schedule -
    schedsim simulate --layers 96 plan.json --allocator cuda-caching
    """
    loaded = source.read(plan=True)
    schedule = _schedule(loaded, schedule_file)
    simulation = simulate(loaded.workload, schedule)
    budget = budget_bytes
    if budget is None and loaded.plan is not None:
        budget = loaded.plan.budget_bytes
    problems = _problems(loaded, simulation, budget)
    options = read_options(allocator, alloc_conf)
    if allocator is None:
        allocator, options = of_plan(loaded.plan)
    found = {}
    if allocator not in (None, EXACT):
        found = allocations(simulation, allocator, budget, options)
        problems += allocation_problems(found, loaded.plan, budget)
    document = _document(simulation, budget, problems)
    if found:
        document["allocations"] = {pool: allocation_document(one) for pool, one in found.items()}
    if output is not None:
        import json

        write_atomically(output, json.dumps(document, indent=1) + "\n")
    if as_json:
        print_json(document)
    else:
        _show(loaded, simulation, budget, found)
    if problems:
        click.echo(f"error: {'; '.join(problems)}", err=True)
    return NO if problems else YES


def _schedule(loaded: Loaded, schedule_file: str | None) -> Schedule:
    if schedule_file is not None:
        if loaded.plan is not None:
            raise SchedsimError("both a plan and --schedule are given", hint="give one of the two")
        names = _read_text(schedule_file).split()
        if not names:
            raise SchedsimError(f"--schedule {schedule_file}: no op names", hint="F0 F1 loss ...")
        return Schedule.from_names(names)
    if loaded.plan is None:
        return Schedule.store_all(loaded.workload)
    return schedule_of(loaded.plan)


def _read_text(name: str) -> str:
    data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise SchedsimError(
            f"--schedule {name}: not a text file", hint="op names with spaces between them"
        ) from None


def _problems(loaded: Loaded, simulation: Simulation, budget: int | None) -> list[str]:
    found = _mismatches(loaded.plan, simulation) if loaded.plan is not None else []
    if budget is not None and simulation.peak_bytes > budget:
        over = format_bytes(simulation.peak_bytes - budget)
        found.append(f"the peak is {over} over the budget of {format_bytes(budget)}")
    return found


def _mismatches(plan: Plan, simulation: Simulation) -> list[str]:
    found = []
    if plan.peak_bytes != simulation.peak_bytes:
        found.append(f"the plan says peak {plan.peak_bytes}, the replay {simulation.peak_bytes}")
    said = plan.makespan_s or 0.0
    if abs(said - simulation.makespan_s) > 1e-9 * simulation.makespan_s:
        found.append(f"the plan says step time {said} s, the replay {simulation.makespan_s} s")
    return found


def _document(simulation: Simulation, budget: int | None, problems: list[str]) -> dict[str, Any]:
    return {
        "schema": "schedsim.simulation/1",
        "workload": simulation.workload_name,
        "num_runs": simulation.num_runs,
        "num_recomputed": simulation.num_recomputed,
        "peak_bytes": simulation.peak_bytes,
        "peak_run": simulation.peak_run,
        "peak_op": simulation.peak_op,
        "peak_by_category": simulation.by_category(),
        "makespan_s": simulation.makespan_s,
        "store_all_s": simulation.store_all_s,
        "overhead": simulation.overhead,
        "budget_bytes": budget,
        "problems": problems,
    }


def _show(
    loaded: Loaded, simulation: Simulation, budget: int | None, found: dict[str, Allocation]
) -> None:
    for line in loaded.assumptions:
        click.echo(line)
    click.echo()
    facts = [
        ("runs", f"{simulation.num_runs}, {simulation.num_recomputed} recomputed"),
        (
            "peak",
            f"{format_bytes(simulation.peak_bytes)} at {loaded.label(simulation.peak_op)}, "
            f"run {simulation.peak_run}",
        ),
    ]
    for name, size in simulation.by_category().items():
        if size:
            facts.append((f"  {name}", f"{format_bytes_short(size):>10}"))
    for pool, allocation in found.items():
        facts += describe(pool, allocation)
    if budget is not None:
        facts.append(("budget", format_bytes(budget)))
    facts.append(
        (
            "step time",
            f"{format_seconds(simulation.makespan_s)}, {percent(simulation.overhead)} over "
            f"store-all {format_seconds(simulation.store_all_s)}",
        )
    )
    print_facts(facts)
    live = simulation.live_tensors()
    click.echo(f"\nlargest of the {len(live)} tensors alive at the peak")
    rows = [
        (t.name, t.category, format_bytes_short(t.size_bytes), f"{t.first_run}..{t.last_run}")
        for t in live[:8]
    ]
    print_table(("tensor", "category", "size", "alive in runs"), rows, left=2)
