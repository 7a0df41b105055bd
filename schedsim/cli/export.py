"""``schedsim export``: a plan in the words of a framework."""

from __future__ import annotations

import click

from ..errors import SchedsimError
from ..export import TARGETS, Exported, all_targets, export, get_target, target_names
from ..files.atomic import write_atomically
from ..units import format_bytes, format_seconds
from .app import NO, YES
from .given.loaded import Loaded, read, schedule_of
from .given.workload_options import workload_options
from .given.workload_source import Source
from .help import GroupedCommand
from .options.files import json_option, output_option
from .show import percent, print_facts, print_json, print_table, working


@click.command(
    "export", cls=GroupedCommand, short_help="A plan as code or configuration of a framework."
)
@click.option("--to", "target", metavar="TARGET", help=f"One of {', '.join(TARGETS)}.")
@click.option(
    "--framework-version",
    "version",
    metavar="VERSION",
    help="An earlier version of the framework, where its code differs.",
)
@click.option("--list", "listing", is_flag=True, help="List the targets and what each can express.")
@json_option
@output_option("Write the code or configuration to FILE.")
@workload_options
def command(
    source: Source,
    target: str | None,
    version: str | None,
    listing: bool,
    as_json: bool,
    output: str | None,
) -> int:
    """Write a plan as code or configuration of the framework in which the model trains.

    If the framework cannot express the plan, schedsim takes the nearest schedule that it can
    express, simulates that schedule, and reports its true peak and its cost. Exit code 1 if that
    peak is over the budget.

    \b
    schedsim plan --preset gpt2-xl --batch 8 --mem 12GB -o plan.json
    schedsim export --preset gpt2-xl --batch 8 plan.json --to transformers -o checkpointing.py
    """
    if listing:
        _refuse_beside_list(source, {"--to": target, "-o": output, "--framework-version": version})
    if listing and as_json:
        targets = [
            {"name": t.name, "takes": list(t.kinds), "expresses": t.expresses}
            for t in all_targets().values()
        ]
        print_json({"schema": "schedsim.targets/1", "targets": targets})
        return YES
    if listing:
        rows = [(t.name, ", ".join(t.kinds), t.expresses) for t in all_targets().values()]
        print_table(("target", "takes", "expresses"), rows, left=3)
        return YES
    if target is None:
        raise SchedsimError("--to is missing", hint=f"one of {', '.join(target_names())}")
    # Refuse an unknown name or version before reading any file.
    get_target(target).load_version(version)
    loaded = read(source, plan=True)
    if loaded.plan is None:
        raise SchedsimError("no plan is given", hint="schedsim plan ... -o plan.json makes one")
    schedule_of(loaded.plan)
    with working(f"looking for the nearest that {target} can express"):
        exported = export(loaded.given, loaded.plan, target, version=version)
    if output is not None:
        write_atomically(output, exported.text)
    if as_json:
        print_json(exported.to_dict())
    else:
        _show(loaded, exported, output)
    return YES if exported.fits else NO


def _refuse_beside_list(source: Source, options: dict[str, str | None]) -> None:
    """Refuse options that have no meaning beside the list of targets."""
    given = {**options, **source.given_flags()}
    others = [flag for flag, value in given.items() if value is not None] + list(source.files)
    if others:
        raise SchedsimError(f"{others[0]} does not go with --list", hint="leave it out, or --list")


def _show(loaded: Loaded, exported: Exported, output: str | None) -> None:
    if output is None:
        click.echo(exported.text, nl=False)
    fits = "fits" if exported.fits else "OVER"
    facts = [
        ("target", f"{exported.target}: {exported.says}"),
        ("plan", "expressed exactly" if exported.exact else "the nearest that can be expressed"),
        (
            "peak",
            f"{format_bytes(exported.peak_bytes)}, {fits} the budget of "
            f"{format_bytes(exported.budget_bytes)}",
        ),
        (
            "step time",
            f"{format_seconds(exported.makespan_s)}, {percent(exported.regret)} over the plan",
        ),
    ]
    if output is not None:
        print_facts(facts)
        return
    width = max(len(label) for label, _ in facts) + 2
    for label, value in facts:
        click.echo(f"{label:<{width}}{value}", err=True)
