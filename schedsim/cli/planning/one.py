"""``schedsim plan`` for a single plan: no other sizes, no changes of a model's step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from ...api import certify, try_plan
from ...errors import SchedsimError
from ...files.atomic import write_atomically
from ...files.document import load, save, to_dict
from ...plans.plan import Plan
from ...simulation.schedule import Schedule
from ...simulation.simulator import simulate
from ...units import format_seconds
from ..app import INTERRUPTED, NO, YES
from ..given.loaded import Loaded, read
from ..show import print_json, working
from .advice import explain_infeasible, show_next
from .facts import show_plan
from .request import PlanRequest


def plan_one(request: PlanRequest) -> int:
    """Plan, write the files, print the summary, and return the exit code."""
    loaded = read(request.source, movable=bool(request.link))
    options = request.options(loaded.workload)
    if useless := request.useless_kinds(loaded.workload):
        click.echo(
            f"note: --allow {','.join(useless)} changes nothing: "
            f"{loaded.workload.name} has no such variant",
            err=True,
        )
    budget_bytes = loaded.budget_bytes(request.budget)
    with working(f"planning with {request.planner}"):
        # Simulated before planning, so that loading the simulator does not count as planning time.
        everything = simulate(loaded.workload, Schedule.store_all(loaded.workload))
        plan = try_plan(loaded.workload, budget_bytes, request.planner, **request.memory, **options)
    plan = loaded.remembered_by(plan, request.source.origin)
    if loaded.origin:
        plan = replace(plan, setting=replace(plan.setting, step=loaded.origin))
    if not plan.feasible and plan.search.interrupted:
        # Nothing was found and nothing was proven, so there is nothing to keep or to show.
        click.echo("error: interrupted before there was a plan", err=True)
        return INTERRUPTED
    if request.output is not None:
        _keep(plan, request.output)
    proven = _certified(loaded, plan, request.certificate)
    for line in loaded.assumptions:
        click.echo(line, err=request.as_json)
    if request.as_json:
        print_json(to_dict(plan))
    else:
        click.echo()
    if not plan.feasible:
        explain_infeasible(request, loaded, plan)
        click.echo(proven, err=request.as_json, nl=bool(proven))
        return NO
    if not request.as_json:
        show_plan(loaded, plan, everything)
    click.echo(proven, err=request.as_json, nl=bool(proven))
    if not request.as_json:
        show_next(request, loaded, plan, everything.peak_bytes, options)
    return INTERRUPTED if plan.search.interrupted else YES


def _certified(loaded: Loaded, plan: Plan, path: str | None) -> str:
    """Write the certificate of `plan` to `path`; a line that says what it proves."""
    if path is None:
        return ""
    with working("proving"):
        certificate = certify(loaded.workload, plan)
    write_atomically(path, json.dumps(certificate.to_dict(), indent=1) + "\n")
    if certificate.bound is None:
        least = certificate.least
        known = least is not None and least.least_bytes > plan.budget_bytes
        what = "that nothing fits" if known else "nothing: no proof was found"
    else:
        gap = float(certificate.gap or 0)
        seconds = format_seconds(float(certificate.bound.bound_s))
        what = f"{seconds} over {certificate.bound.scope}, gap {gap:.2%}".replace("%", " %")
        what += f", by {certificate.bound.proof['kind']}"
    return f"certificate     {path} proves {what}"


def _keep(plan: Plan, path: str) -> None:
    """Write `plan` to the file at `path`; a plan without a schedule replaces no file."""
    if not plan.feasible and Path(path).is_file() and not _holds_infeasible(path):
        click.echo(f"note: {path} is kept as it was, as this plan has no schedule", err=True)
        return
    save(plan, path)


def _holds_infeasible(path: str) -> bool:
    try:
        old = load(path)
    except (SchedsimError, OSError):
        return False
    return isinstance(old, Plan) and not old.feasible
