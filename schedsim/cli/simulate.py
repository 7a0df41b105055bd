"""``schedsim simulate``: replay a plan, or any schedule, and check what it claims."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from ..allocators import Allocation
from ..errors import SchedsimError
from ..files.atomic import write_atomically
from ..plans.claims import mismatches
from ..simulation.schedule import Schedule
from ..simulation.simulator import Simulation, simulate
from ..simulation.trace import is_trace_name, write_trace
from ..simulation.waiting import critical_s, idle_s
from ..snapshots.reading import is_snapshot_name
from ..units import format_bytes, format_bytes_short, format_seconds
from .app import NO, YES
from .given.loaded import Loaded, given_schedule, read, schedule_of
from .given.workload_options import workload_options
from .given.workload_source import Source
from .help import GroupedCommand
from .options.allocator_options import allocator_options
from .options.files import json_option, output_option, schedule_option
from .options.limits import budget_option, capacity_option
from .options.rule_options import rule_facts
from .show import percent, print_facts, print_json, print_table
from .shown.allocations import allocations_with_problems, describe
from .shown.allocations import document as allocation_document
from .snapshot import replay_snapshot

# Words for the causes of waiting in the table of streams.
_WAITS = {
    "nothing": "at the start",
    "stream": "behind another run",
    "input": "for an input",
    "issue order": "in issue order",
    "memory": "for memory",
    "end": "at the end",
}


@click.command(
    "simulate", cls=GroupedCommand, short_help="Replay a plan or a list of op names, and check it."
)
@budget_option(required=False)
@schedule_option
@allocator_options
@capacity_option
@json_option
@output_option("Write the result to FILE as JSON, or to *.json.gz a trace for Perfetto.")
@workload_options
def command(
    source: Source,
    budget: int | str | None,
    schedule_file: str | None,
    allocator: str | None,
    alloc_conf: str | None,
    capacities: dict[str, int] | None,
    as_json: bool,
    output: str | None,
) -> int:
    """Replay the schedule of a plan, or one from a list of op names.

    Exit code 1 if the plan belongs to another workload, if the replay gives another peak or step
    time (a real model is measured anew, so only its peak counts), if the peak is over the budget,
    or if runs that wait for memory get stuck.

    \b
    schedsim simulate --layers 96 plan.json -o trace.json.gz
    echo "F0 F1 loss B1 F0 B0" | schedsim simulate chain.json --schedule -
    schedsim simulate --layers 96 plan.json --allocator cuda-caching
    schedsim simulate copies.json --schedule runs.txt --capacity host=64GiB
    schedsim simulate snapshot.pickle --allocator cuda-caching --alloc-conf max_split_size_mb:128
    """
    if any(is_snapshot_name(name) for name in source.files):
        other = schedule_file is not None or budget is not None or capacities
        if len(source.files) > 1 or source.given_flags() or other:
            raise SchedsimError(
                "a memory snapshot is replayed alone",
                hint=f"schedsim simulate {source.files[0]} --allocator cuda-caching",
            )
        return replay_snapshot(source.files[0], allocator, alloc_conf, as_json, output)
    loaded = read(source, plan=True, check=False)
    schedule = _schedule(loaded, schedule_file)
    if loaded.plan is not None:
        plan = loaded.plan
        simulation = plan.simulate(loaded.given, capacities)
        run = plan.setting.workload(loaded.given, schedule)
        capacities = plan.setting.limits(run, plan.budget_bytes, capacities)
    else:
        simulation = simulate(loaded.workload, schedule, capacities)
    budget_bytes = None if budget is None else loaded.budget_bytes(budget)
    over = _over_budget(simulation, budget_bytes)
    if budget_bytes is None and loaded.plan is not None:
        budget_bytes = loaded.plan.budget_bytes
    # The times of a real model are measured anew, so they never agree.
    said = (
        []
        if loaded.plan is None
        else mismatches(loaded.plan, simulation, times=not source.is_model)
    )
    problems = [*said, *over]
    found, wrong = allocations_with_problems(
        simulation, loaded.plan, budget_bytes, allocator, alloc_conf
    )
    problems += wrong
    document = _document(simulation, budget_bytes, capacities or {}, problems)
    if found:
        document["allocations"] = {pool: allocation_document(one) for pool, one in found.items()}
    if output is not None and is_trace_name(output):
        write_trace(simulation, output)
        click.echo(f"wrote {output}: open it in ui.perfetto.dev", err=True)
    elif output is not None:
        import json

        write_atomically(output, json.dumps(document, indent=1) + "\n")
    if as_json:
        print_json(document)
    else:
        _show(loaded, simulation, budget_bytes, capacities or {}, found)
    if problems:
        click.echo(f"error: {'; '.join(problems)}", err=True)
        click.echo(f"hint: {_remedy(said, allocator, wrong)}", err=True)
    return NO if problems else YES


def _schedule(loaded: Loaded, schedule_file: str | None) -> Schedule:
    if schedule_file is not None:
        return given_schedule(loaded, schedule_file)
    if loaded.plan is None:
        return Schedule.store_all(loaded.workload)
    return schedule_of(loaded.plan)


def _over_budget(simulation: Simulation, budget: int | None) -> list[str]:
    if budget is None or simulation.peak_bytes <= budget:
        return []
    over = format_bytes(simulation.peak_bytes - budget)
    return [f"the peak is {over} over the budget of {format_bytes(budget)}"]


def _remedy(said: list[str], allocator: str | None, wrong: list[str]) -> str:
    """The remedy for the problems; for the first problem if remedies differ."""
    if said:
        return "plan again: the file was edited, or made by another version"
    if wrong and allocator is not None:
        return f"schedsim plan --allocator {allocator} makes the budget bound what it reserves"
    return "give a larger --mem, or plan for this one"


def _document(
    simulation: Simulation, budget: int | None, capacities: dict[str, int], problems: list[str]
) -> dict[str, Any]:
    idle = idle_s(simulation)
    num_runs = np.bincount(simulation.run_streams, minlength=len(simulation.stream_names))
    return {
        "schema": "schedsim.simulation/2",
        "workload": simulation.workload_name,
        "num_runs": simulation.num_runs,
        "num_recomputed": simulation.num_recomputed,
        "num_copies": simulation.num_copies,
        "peak_bytes": simulation.peak_bytes,
        "peak_run": simulation.peak_run,
        "peak_op": simulation.peak_op,
        "peak_by_category": simulation.by_category(),
        "makespan_s": simulation.makespan_s,
        "store_all_s": simulation.store_all_s,
        "overhead": simulation.overhead,
        "budget_bytes": budget,
        "streams": [
            {
                "name": stream,
                "num_runs": int(num_runs[number]),
                "busy_s": busy,
                "busy_share": _share(busy, simulation),
                "idle_s": idle[stream],
            }
            for number, (stream, busy) in enumerate(simulation.busy_s.items())
        ],
        "critical_s": critical_s(simulation),
        "pools": [
            {"name": pool, "peak_bytes": peak, "capacity_bytes": capacities.get(pool)}
            for pool, peak in simulation.peak_by_pool.items()
        ],
        "problems": problems,
    }


def _share(busy: float, simulation: Simulation) -> float:
    return busy / simulation.makespan_s if simulation.makespan_s else 0.0


def _show(
    loaded: Loaded,
    simulation: Simulation,
    budget: int | None,
    capacities: dict[str, int],
    found: dict[str, Allocation],
) -> None:
    for line in loaded.assumptions:
        click.echo(line)
    click.echo()
    facts = [
        ("runs", _runs(simulation)),
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
    if loaded.plan is not None:
        facts += rule_facts(loaded.plan.setting.rules)
    if len(simulation.stream_names) > 1:
        path = sorted(critical_s(simulation).items(), key=lambda item: -item[1])
        share = ", ".join(f"{stream} {format_seconds(time)}" for stream, time in path)
        facts.append(("critical path", share))
    print_facts(facts)
    if len(simulation.stream_names) > 1 or len(simulation.pool_names) > 1 or capacities:
        _show_streams(simulation)
        _show_pools(simulation, capacities)
    _show_tensors(simulation)


def _runs(simulation: Simulation) -> str:
    text = f"{simulation.num_runs}, {simulation.num_recomputed} recomputed"
    return f"{text}, {simulation.num_copies} copies" if simulation.num_copies else text


def _show_streams(simulation: Simulation) -> None:
    """Print what each stream does, and what it waits for when idle."""
    idle = idle_s(simulation)
    num_runs = np.bincount(simulation.run_streams, minlength=len(simulation.stream_names))
    rows = []
    for number, (stream, busy) in enumerate(simulation.busy_s.items()):
        reasons = sorted(idle[stream].items(), key=lambda item: -item[1])
        waits = ", ".join(f"{_WAITS[cause]} {format_seconds(time)}" for cause, time in reasons)
        share = f"{_share(busy, simulation):.1%}".replace("%", " %")
        rows.append((stream, str(num_runs[number]), format_seconds(busy), share, waits))
    click.echo()
    print_table(("stream", "runs", "busy", "share", "idle"), rows, right=(1, 2, 3))


def _show_pools(simulation: Simulation, capacities: dict[str, int]) -> None:
    rows = []
    for pool, peak in simulation.peak_by_pool.items():
        limit = capacities.get(pool)
        rows.append((pool, format_bytes(peak), "" if limit is None else format_bytes(limit)))
    click.echo()
    print_table(("pool", "peak", "capacity"), rows)


def _show_tensors(simulation: Simulation) -> None:
    """Print the largest tensors alive at the peak, with their pool if there are several."""
    live = simulation.live_tensors()
    click.echo(f"\nlargest of the {len(live)} tensors alive at the peak")
    several = len(simulation.pool_names) > 1
    rows = []
    for t in live[:8]:
        where = (t.pool,) if several else ()
        runs = f"{t.first_run}..{t.last_run}"
        rows.append((t.name, *where, t.category, format_bytes_short(t.size_bytes), runs))
    headers = ("tensor", *(("pool",) if several else ()), "category", "size", "alive in runs")
    print_table(headers, rows, left=len(headers) - 2)
