"""``schedsim validate``: run a plan on the real model, predicted against measured."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..api import try_plan
from ..errors import SchedsimError
from ..files.atomic import write_atomically
from ..files.document import load
from ..plans.budgets import read_budget
from ..plans.plan import Plan
from ..plans.setting import refuse_copies, refuse_levels
from ..simulation.schedule import Schedule
from ..units import format_bytes, format_bytes_short, format_seconds
from ..workloads.given import is_target
from .app import NO, YES
from .dry import on_device
from .given.loaded import need_torch, schedule_of
from .given.remembered import capture_of, check_plan, has_link
from .given.workload_options import LEVEL_HELP, remeasure_option
from .help import GroupedCommand
from .options.files import check_outputs, json_option, output_option
from .options.limits import budget_option
from .options.rule_options import rule_options, take_rules
from .show import percent, print_facts, print_json, print_table, working

if TYPE_CHECKING:
    from ..validation.validate import Report


def target_options(function: Any) -> Any:
    """The target, ``--device``, ``--level``, ``--meter`` and ``--remeasure``."""
    for option in (
        remeasure_option,
        click.option(
            "--meter",
            help="How bytes are measured: storage, allocator or cuda; by default as budgets count.",
        ),
        click.option("--level", help=LEVEL_HELP),
        click.option(
            "--device", help="cpu, cuda or dry:a100-80gb; by default cuda if there is one."
        ),
        click.argument("target"),
    ):
        function = option(function)

    @functools.wraps(function)
    def command(**given: Any) -> Any:
        check_outputs({"-o": given["output"]}, [given["target"], given.get("plan_file")])
        return function(**given)

    return command


@click.command(
    "validate",
    cls=GroupedCommand,
    short_help="Run a plan on the real model: predicted against measured.",
)
@target_options
@click.argument("plan_file", metavar="[PLAN.json]", required=False)
@budget_option(required=False)
@rule_options
@click.option(
    "--rounds", default=7, show_default=True, help="Timed steps of each kind; 0 measures no times."
)
@click.option("--seed", default=0, show_default=True, help="Seed of the random numbers of a step.")
@json_option
@output_option("Write the report to FILE, as JSON.")
def command(**given: Any) -> int:
    """Run a plan on the real model and compare with what was predicted.

    TARGET is FILE.py:FUNCTION returning (model, inputs, loss); model:NAME,OPTION=VALUE,... for a
    model that comes with schedsim; or hf:NAME,... for a model of transformers with random weights.
    Without a plan, --mem makes one; without both, nothing is recomputed. Exit code 1 if a
    measurement differs from the prediction.

    \b
    schedsim validate my_model.py:build plan.json --device cuda
    schedsim validate plan.json                      the model that the plan remembers
    schedsim validate model:resnet50,batch=4,image=64 --mem 300MB
    """
    request = _remembered(ValidateRequest(**given))
    if not is_target(request.target):
        raise SchedsimError(
            f"{request.target!r} is no model", hint="FILE.py:FUNCTION, model:resnet50 or hf:gpt2"
        )
    if request.rounds < 0:
        raise SchedsimError(f"--rounds {request.rounds} is negative", hint="0 leaves the times out")
    rules = _rules(request)
    plan = _plan_in(request.plan_file) if request.plan_file is not None else None
    known = plan.workload.source if plan is not None else None
    level, device = capture_of(known, request.level, request.device)
    on_device(device)
    need_torch()
    from ..validation.environment import resolve_device
    from ..validation.targets import read_target
    from ..validation.validate import validate

    resolve_device(device)
    level = level or "block"
    with working("capturing the model"):
        movable = plan is not None and has_link(plan)
        read = read_target(
            request.target,
            level=level,
            device=device,
            meter=request.meter,
            remeasure=request.again,
            movable=movable,
        )
    offloading = None
    if plan is not None:
        refuse_levels(plan.setting, plan.schedule, "a real model")
        offloading = plan.setting.link
        if level != "block":
            refuse_copies(plan.setting, plan.schedule, "the op level")
        check_plan(plan, read.workload, measured=True)
    elif request.budget is not None:
        plan = try_plan(read.workload, request.budget, **rules)
    schedule = schedule_of(plan) if plan is not None else Schedule.store_all(read.workload)
    limit_bytes = None
    if request.budget is not None:
        limit_bytes = read_budget(request.budget, read.workload)
    elif plan is not None:
        limit_bytes = plan.budget_bytes
    with working("running it"):
        report = validate(
            read.target,
            read.captured,
            schedule,
            budget_bytes=limit_bytes,
            rounds=request.rounds,
            seed=request.seed,
            offloading=offloading,
            planned_bytes=plan.budget_bytes if plan is not None else None,
        )
    if request.output is not None:
        write_atomically(request.output, json.dumps(report.to_dict(), indent=1) + "\n")
    if request.as_json:
        print_json(report.to_dict())
    else:
        for line in read.lines:
            click.echo(line)
        click.echo()
        _show(report)
    failed = [check.name for check in report.checks if not check.holds]
    if failed:
        click.echo(f"error: {', '.join(failed)} not as predicted", err=True)
    return NO if failed else YES


@dataclass(frozen=True)
class ValidateRequest:
    """The command line of ``schedsim validate``."""

    target: str
    plan_file: str | None
    device: str | None
    level: str | None
    meter: str | None
    again: bool
    budget: int | str | None
    rounds: int
    seed: int
    keep: tuple[str, ...]
    recompute_patterns: tuple[str, ...]
    as_json: bool
    output: str | None


def _rules(request: ValidateRequest) -> dict[str, Any]:
    """``--keep`` and ``--recompute``, which are for the plan that ``--mem`` makes."""
    rules = take_rules({"keep": request.keep, "recompute_patterns": request.recompute_patterns})
    if rules and (request.plan_file is not None or request.budget is None):
        raise SchedsimError(
            f"--{next(iter(rules))} is for the plan that --mem makes",
            hint="a plan file has its own" if request.plan_file is not None else "add --mem SIZE",
        )
    return rules


def _remembered(request: ValidateRequest) -> ValidateRequest:
    """`request` with the model that its plan remembers, if only a plan is given."""
    if request.plan_file is not None or not Path(request.target).is_file():
        return request
    source = _plan_in(request.target).workload.source
    if source is None or source.kind != "model":
        raise SchedsimError(
            f"{request.target} is a plan, but not of a real model",
            hint="schedsim validate MODEL: FILE.py:FUNCTION, model:resnet50 or hf:gpt2",
        )
    return replace(request, target=source.target, plan_file=request.target)


def _plan_in(name: str) -> Plan:
    item = load(name)
    if not isinstance(item, Plan):
        raise SchedsimError(f"{name} is no plan", hint="schedsim plan TARGET --mem SIZE -o FILE")
    return item


def _show(report: Report) -> None:
    predicted, measured = report.predicted, report.measured
    rows = [("peak", _bytes(predicted["peak_bytes"]), _bytes(measured["peak_bytes"]))]
    kinds = dict.fromkeys([*predicted["by_kind"], *measured.get("by_kind", {})])
    for kind in kinds if "by_kind" in measured else ():
        pair = (predicted["by_kind"].get(kind, 0), measured["by_kind"].get(kind, 0))
        rows.append((f"  {kind}", format_bytes_short(pair[0]), format_bytes_short(pair[1])))
    if "peak_op" in measured:
        rows.append(("  at", predicted["peak_op"], measured["peak_op"]))
    if "host_peak_bytes" in measured:
        sizes = (predicted["host_peak_bytes"], measured["host_peak_bytes"])
        rows.append(("host peak", _bytes(sizes[0]), _bytes(sizes[1])))
    if "overhead" in measured:
        rows.append(("overhead", percent(predicted["overhead"]), percent(measured["overhead"])))
    print_table(("", "predicted", "measured"), rows)
    click.echo()
    facts = [("runs", f"{report.num_runs}, {report.num_recomputed} recomputed")]
    for name in ("plain", "store-all"):
        if measured.get(f"{name}_peak_bytes") is not None:
            facts.append((f"{name} peak", format_bytes(measured[f"{name}_peak_bytes"])))
    for key, label in (
        ("allocator_peak_bytes", "by the allocator's record"),
        ("allocated_bytes", "allocated"),
        ("reserved_bytes", "reserved"),
    ):
        if key in measured:
            facts.append((label, format_bytes(measured[key])))
    for name in ("plain", "store-all", "schedule"):
        if f"{name}_s" in measured:
            timing = measured[f"{name}_s"]
            spread = f"{format_seconds(timing['low_s'])} to {format_seconds(timing['high_s'])}"
            facts.append((f"{name} step", f"{format_seconds(timing['median_s'])} ({spread})"))
    print_facts(facts)
    click.echo()
    for check in report.checks:
        click.echo(f"{'holds' if check.holds else 'FAILS'}  {check.name}: {check.says}")


def _bytes(size: int) -> str:
    return f"{size:,} B"
