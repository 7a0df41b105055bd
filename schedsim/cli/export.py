"""``schedsim export``: a plan in the words of a framework."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from ..errors import SchedsimError
from ..export import TARGETS, Exported, all_targets, export, get_target, target_names
from ..export.pipeline_stages import export_stages
from ..files.atomic import write_atomically
from ..files.reader import parse_json
from ..pipelines.plan_file import PIPELINE_PLAN_SCHEMA
from ..units import format_bytes, format_bytes_short, format_seconds
from .app import NO, YES
from .given.loaded import Loaded, read, schedule_of
from .given.made_pipeline import planned
from .given.pipeline_options import PipelineRequest
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
    schedsim export pipeline.json --to megatron -o stages.py   # a plan of schedsim pipeline
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
    pipeline = next((name for name in source.files if _is_of_pipeline(name)), None)
    if pipeline is not None:
        return _export_pipeline(source, pipeline, target, version, as_json, output)
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


def _is_of_pipeline(name: str) -> bool:
    """Whether the file `name` is a plan of a pipeline; what cannot be read is told of later."""
    try:
        document = parse_json(Path(name).read_bytes())
    except (OSError, SchedsimError):
        return False
    return isinstance(document, dict) and document.get("schema") == PIPELINE_PLAN_SCHEMA


def _export_pipeline(
    source: Source, file: str, target: str, version: str | None, as_json: bool, output: str | None
) -> int:
    """Each stage's own plan, in the words of `target`."""
    if version is not None:
        raise SchedsimError(
            f"--framework-version {version} does not go with a plan of a pipeline",
            hint="leave it out: stages are written for the current one",
        )
    others = tuple(name for name in source.files if name != file)
    made = planned(PipelineRequest(replace(source, files=others), None, {}, file))
    made.check()
    run, budget = made.plan.run, made.plan.budget_bytes
    assert run is not None
    with working(f"looking for the nearest that {target} can express"):
        exported = export_stages(run, run.peak_bytes if budget is None else budget, target)
    if output is not None:
        write_atomically(output, exported.text)
    if as_json:
        print_json(exported.to_dict())
        return YES if exported.fits else NO
    slower = percent(exported.regret)
    alike = exported.alike
    facts = [
        ("target", f"{target}: {exported.says}"),
        _peak_fact(exported.run.peak_bytes, exported.budget_bytes, " a device"),
        ("step time", f"{format_seconds(exported.run.makespan_s)}, {slower} over the plan"),
        (
            "one number",
            f"for all stages, at best: {format_seconds(alike.makespan_s)}, "
            f"{format_bytes(alike.peak_bytes)} a device",
        ),
    ]
    _show_facts(facts, exported.text, output)
    return YES if exported.fits else NO


def _peak_fact(peak_bytes: int, budget_bytes: int, of_what: str = "") -> tuple[str, str]:
    """The peak beside the budget; in bytes where both would read alike."""
    peak, budget = format_bytes(peak_bytes), format_bytes(budget_bytes)
    if peak_bytes <= budget_bytes:
        return "peak", f"{peak}{of_what}, fits the budget of {budget}"
    over = f"{peak_bytes - budget_bytes:,} bytes ({format_bytes_short(peak_bytes - budget_bytes)})"
    return "peak", f"{peak}{of_what}, OVER the budget of {budget} by {over}"


def _refuse_beside_list(source: Source, options: dict[str, str | None]) -> None:
    """Refuse options that have no meaning beside the list of targets."""
    given = {**options, **source.given_flags()}
    others = [flag for flag, value in given.items() if value is not None] + list(source.files)
    if others:
        raise SchedsimError(f"{others[0]} does not go with --list", hint="leave it out, or --list")


def _show(loaded: Loaded, exported: Exported, output: str | None) -> None:
    facts = [
        ("target", f"{exported.target}: {exported.says}"),
        ("plan", "expressed exactly" if exported.exact else "the nearest that can be expressed"),
        _peak_fact(exported.peak_bytes, exported.budget_bytes),
        (
            "step time",
            f"{format_seconds(exported.makespan_s)}, {percent(exported.regret)} over the plan",
        ),
    ]
    if not exported.fits:
        facts.append(("instead", _what_fits(loaded, exported)))
    _show_facts(facts, exported.text, output)


def _what_fits(loaded: Loaded, exported: Exported) -> str:
    """The hint where nothing that the target can express is within the budget."""
    assert loaded.plan is not None
    others = []
    for name, target in TARGETS.items() if loaded.given.kind == "chain" else ():
        if name == exported.target or "chain" not in target.kinds:
            continue
        try:
            found = export(loaded.given, loaded.plan, name)
        except SchedsimError:
            continue
        others += [name] if found.fits else []
    what = f"a budget of --mem {exported.peak_bytes} has room for this"
    return f"{what}; the plan fits with --to {' or '.join(others)}" if others else what


def _show_facts(facts: list[tuple[str, str]], text: str, output: str | None) -> None:
    """Lines about the export; to stderr where the exported text goes to stdout."""
    if output is not None:
        print_facts(facts)
        return
    click.echo(text, nl=False)
    width = max(len(label) for label, _ in facts) + 2
    for label, value in facts:
        click.echo(f"{label:<{width}}{value}", err=True)
