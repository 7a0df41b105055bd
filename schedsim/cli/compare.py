"""``schedsim compare``: several planners on one workload, one row each."""

from __future__ import annotations

import json
from typing import Any

import click

from ..api import comparable, try_plan
from ..errors import (
    MissingDependencyError,
    PlannerLimitError,
    SchedsimError,
    UnsupportedError,
)
from ..files.atomic import write_atomically
from ..files.workload_files import workload_hash
from ..plans.effort import DEFAULT_WORK
from ..plans.plan import Plan
from ..plans.scope import ANY_SCHEDULE
from ..plans.shared_bounds import SharedBound
from ..simulation.schedule import Schedule
from ..simulation.simulator import simulate
from ..units import format_bytes, format_bytes_short, format_seconds
from .app import NO, YES
from .given.loaded import read
from .given.workload_options import workload_options
from .given.workload_source import Source
from .help import GroupedCommand
from .options import complete
from .options.files import json_option, output_option
from .options.limits import budget_option
from .options.link import link_option, take_link
from .options.rule_options import rule_options, take_rules
from .options.typed_sizes import size_text
from .show import percent, print_json, print_table, working
from .shown.compared_results import compare_results, is_results, only_results


@click.command(
    "compare",
    cls=GroupedCommand,
    short_help="Several planners on one workload and budget, a row each.",
)
@budget_option(required=False)
@click.option(
    "--planners",
    shell_complete=complete.planner_list,
    help="Planners, separated by commas; by default all that take the workload.",
)
@click.option(
    "--time-limit",
    "time_limit_s",
    type=click.FloatRange(min=0),
    help="Seconds for each planner that searches; a watchdog beside --effort.",
)
@click.option(
    "--effort",
    type=click.FloatRange(min=0),
    help="Work for each planner that searches; gives the same result every time [20].",
)
@rule_options
@link_option
@json_option
@output_option("Write the rows to FILE, as JSON.")
@workload_options
def command(
    source: Source,
    budget: int | str | None,
    planners: str | None,
    time_limit_s: float | None,
    effort: float | None,
    as_json: bool,
    output: str | None,
    **more: Any,
) -> int:
    """Run several planners on one workload and budget, or compare the results of a sweep.

    \b
    schedsim compare --preset gpt2-xl --mem 10GB
    schedsim compare chain.json --mem 2GiB --planners rotor,periodic,chen_sqrt
    schedsim compare --preset resnet-50 --mem 2GiB --link pcie4 --planners frontier,offload
    schedsim compare results.jsonl
    """
    from ..algorithms import get_planner

    if is_results(source.files):
        file = only_results(
            source.files,
            {
                "--mem": budget,
                "--time-limit": time_limit_s,
                "--effort": effort,
                "--keep": more["keep"] or None,
                "--recompute": more["recompute_patterns"] or None,
                **source.given_flags(),
            },
        )
        return compare_results(file, planners, as_json, output)
    if budget is None:
        raise click.UsageError("Missing option '--mem'.", click.get_current_context())
    if effort is None and time_limit_s is None:
        effort = DEFAULT_WORK
    limits = {"time_limit_s": time_limit_s, "effort": effort}
    link, rules = take_link(more), take_rules(more)
    loaded = read(source, movable=bool(link))
    budget_bytes = loaded.budget_bytes(budget)
    names = comparable(loaded.workload, link=bool(link))
    if planners:
        names = [n.strip() for n in planners.split(",")]
    if not all(names):
        raise SchedsimError(f"--planners {planners!r} has an empty name", hint="rotor,periodic")
    for name in names:
        get_planner(name)  # an unknown name is refused before anything is planned
    if link and not any("link" in get_planner(name).options() for name in names):
        raise SchedsimError(
            f"none of --planners {planners} takes --link",
            hint="leave --link out, or add one that offloads: see `schedsim planners`",
        )
    plans: list[Plan] = []
    refused: dict[str, str] = {}
    # Load the simulator now, so that loading does not count as the first planner's time.
    simulate(loaded.workload, Schedule.store_all(loaded.workload))
    for name in names:
        with working(f"planning with {name}"):
            try:
                taken = get_planner(name).options()
                options = {key: v for key, v in limits.items() if v is not None} | link
                options = {key: value for key, value in options.items() if key in taken}
                plan = try_plan(loaded.workload, budget_bytes, name, **rules, **options)
            except (PlannerLimitError, MissingDependencyError, UnsupportedError) as error:
                refused[name] = error.message
                continue
        if plan.search.interrupted:
            raise KeyboardInterrupt  # an unfinished search is no result
        plans.append(plan)
    if not plans:  # whether the workload fits was not looked at
        raise SchedsimError(
            "; ".join(f"{name}: {why}" for name, why in refused.items()),
            hint="`schedsim planners` lists what each planner takes",
        )
    document = _document(loaded.workload, budget_bytes, plans, refused)
    if output is not None:
        write_atomically(output, json.dumps(document, indent=1) + "\n")
    if as_json:
        print_json(document)
    else:
        for line in loaded.assumptions:
            click.echo(line)
        click.echo(f"budget {format_bytes(budget_bytes)}\n")
        headers = ("planner", "status", "peak", "step time", "overhead", "gap", "planned")
        shared = SharedBound.of(plans)
        print_table(headers, [_row(plan, shared) for plan in plans], left=2)
        if shared.scope != ANY_SCHEDULE:
            click.echo(f"\ngap: to the best bound of these, proven over {shared.scope}")
        scopes = {plan.bound_scope for plan in plans if plan.status == "optimal"}
        if scopes:
            click.echo(f"\noptimal: proven over {', '.join(sorted(map(str, scopes)))}")
    for name, why in refused.items():
        click.echo(f"{name}: {why}", err=True)
    if any(plan.feasible for plan in plans):
        return YES
    _explain_none(loaded.workload.name, budget_bytes, plans)
    return NO


def _explain_none(name: str, budget_bytes: int, plans: list[Plan]) -> None:
    """The error and hint lines if no planner found a plan."""
    click.echo(
        f"error: {name} does not fit in {format_bytes(budget_bytes)} with any of these", err=True
    )
    known = [
        (plan.min_feasible_bytes, not plan.least.proven, k)
        for k, plan in enumerate(plans)
        if plan.min_feasible_bytes is not None
    ]
    if known:
        least, _, k = min(known)
        said = f"{plans[k].least.sentence()}, by {plans[k].planner}"
        click.echo(f"hint: {said}: --mem {size_text(least)}", err=True)


def _row(plan: Plan, shared: SharedBound) -> tuple[str, ...]:
    planned = format_seconds(plan.planning_s)
    if plan.peak_bytes is None or plan.makespan_s is None or plan.overhead is None:
        least = plan.min_feasible_bytes
        needs = f"needs {format_bytes_short(least)}" if least is not None else "-"
        return (plan.planner, plan.status, needs, "-", "-", "-", planned)
    return (
        plan.planner,
        plan.status,
        format_bytes_short(plan.peak_bytes),
        format_seconds(plan.makespan_s),
        percent(plan.overhead),
        f"{shared.gap(plan):.2%}".replace("%", " %"),
        planned,
    )


def _document(
    workload: Any, budget_bytes: int, plans: list[Plan], refused: dict[str, str]
) -> dict[str, Any]:
    return {
        "schema": "schedsim.comparison/1",
        "workload": {
            "name": workload.name,
            "kind": workload.kind,
            "content_hash": workload_hash(workload),
        },
        "budget_bytes": budget_bytes,
        "rows": [plan.row.to_dict() for plan in plans],
        "refused": refused,
    }
