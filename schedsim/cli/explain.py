"""``schedsim explain``: why the peak is where it is, and what one change would buy."""

from __future__ import annotations

import json

import click

from ..analysis.explanation import Change, Explanation, explain
from ..errors import SchedsimError
from ..files.atomic import write_atomically
from ..plans.setting import refuse_copies
from ..snapshots.reading import is_snapshot_name
from ..units import (
    format_bytes,
    format_bytes_change,
    format_bytes_short,
    format_seconds,
    format_seconds_change,
)
from .given.loaded import Loaded, read, schedule_of
from .given.workload_options import workload_options
from .given.workload_source import Source
from .help import GroupedCommand
from .options.files import json_option, output_option
from .options.rule_options import rule_facts
from .show import percent, print_facts, print_json, print_table, working
from .snapshot import explain_snapshot


@click.command(
    "explain",
    cls=GroupedCommand,
    short_help="Why the peak is where it is, and what one change would buy.",
)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    help="Rows of each table [8]; --json has all.",
)
@click.option(
    "--alloc-conf",
    "confs",
    multiple=True,
    metavar="CONF",
    help="For a snapshot: replay it under this PYTORCH_ALLOC_CONF; repeatable.",
)
@json_option
@output_option("Write the explanation to FILE, as JSON.")
@workload_options
def command(
    source: Source, top: int | None, confs: tuple[str, ...], as_json: bool, output: str | None
) -> int:
    """Explain the peak of a plan, or of store-all if no plan is given.

    Every price is simulated: it is the price of the schedule with this one change.

    \b
    schedsim explain --layers 24                 what sets the peak, what to evict
    schedsim explain --layers 24 plan.json       why the plan's peak is where it is
    schedsim explain snapshot.pickle             who holds the peak of a run recorded on CUDA
    """
    if top is not None and as_json:
        raise SchedsimError(
            "--top does not go with --json, which has all rows", hint="leave --top out"
        )
    snapshot = next((name for name in source.files if is_snapshot_name(name)), None)
    if snapshot is not None:
        if len(source.files) > 1 or source.given_flags():
            raise SchedsimError(
                f"{snapshot} is a memory snapshot, and is explained alone",
                hint=f"schedsim explain {snapshot}",
            )
        return explain_snapshot(snapshot, top or 8, confs, as_json, output)
    if confs:
        raise SchedsimError(
            "--alloc-conf is for memory snapshots here",
            hint="schedsim simulate --allocator takes it",
        )
    loaded = read(source, plan=True)
    if loaded.plan is not None:
        refuse_copies(loaded.plan.setting, loaded.plan.schedule, "explain")
    schedule = schedule_of(loaded.plan) if loaded.plan is not None else None
    with working("trying single changes"):
        explanation = explain(loaded.workload, schedule)
    if output is not None:
        write_atomically(output, json.dumps(explanation.to_dict(), indent=1) + "\n")
    if as_json:
        print_json(explanation.to_dict())
    else:
        _show(loaded, explanation, 8 if top is None else top)
    return 0


def _show(loaded: Loaded, explanation: Explanation, top: int) -> None:
    simulation = explanation.simulation
    for line in loaded.assumptions:
        click.echo(line)
    click.echo()
    others = explanation.runs_near_peak - 1
    facts = [
        (
            "peak",
            f"{format_bytes(simulation.peak_bytes)} at {loaded.label(simulation.peak_op)}, "
            f"run {simulation.peak_run} of {simulation.num_runs}",
        ),
        *(
            (f"  {name}", f"{format_bytes_short(size):>10}")
            for name, size in simulation.by_category().items()
            if size
        ),
        ("of it, the op's own", format_bytes(explanation.own_bytes)),
        ("as high within 1 %", f"{others} other {'run' if others == 1 else 'runs'}"),
        (
            "floor",
            f"{format_bytes(explanation.floor_bytes)}: {loaded.label(explanation.floor_op)} alone",
        ),
        ("store-all peak", format_bytes(explanation.store_all.peak_bytes)),
        (
            "step time",
            f"{format_seconds(simulation.makespan_s)}, {percent(simulation.overhead)} over "
            "store-all",
        ),
    ]
    if loaded.plan is not None:
        facts += rule_facts(loaded.plan.setting.rules)
    print_facts(facts)
    for finding in explanation.findings:
        click.echo(f"\n{finding.text}")
        click.echo(f"  -> {finding.remedy}")
    _show_alive(loaded, explanation, top)
    _show_changes(
        loaded,
        explanation.recompute,
        "recomputing one thing more: what the peak would lose, and at what price",
        top,
    )
    _show_changes(
        loaded,
        explanation.keep,
        "recomputing one thing less: what time would be saved, and for what memory",
        top,
    )


def _show_alive(loaded: Loaded, explanation: Explanation, top: int) -> None:
    alive = explanation.alive
    click.echo(f"\nlargest of the {len(alive)} tensors alive at the peak")
    rows = [
        (
            tensor.name,
            tensor.category,
            loaded.label(tensor.written_op),
            "the end" if tensor.next_op is None else loaded.label(tensor.next_op),
            format_bytes_short(tensor.size_bytes),
        )
        for tensor in alive[:top]
    ]
    print_table(("tensor", "category", "written by", "waits for", "size"), rows, left=4)


def _show_changes(loaded: Loaded, changes: tuple[Change, ...], title: str, top: int) -> None:
    """A row per price: changes with the same price share a row."""
    if not changes:
        return
    click.echo(f"\n{title}")
    alike: dict[tuple[str, str, str], list[Change]] = {}
    for change in changes:
        price = (
            format_bytes_change(change.peak_change_bytes),
            format_seconds_change(change.time_change_s),
            f"{change.num_runs_change:+d}",
        )
        alike.setdefault(price, []).append(change)
    rows = []
    for price, group in list(alike.items())[:top]:
        more = f" and {len(group) - 1} alike" if len(group) > 1 else ""
        rows.append((loaded.label(group[0].op_name) + more, _listed(group[0].tensors), *price))
    print_table(("op", "tensors", "peak", "time", "runs"), rows, left=2)


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
