"""The advice of ``schedsim plan``: the next commands, or changes that would need less memory."""

from __future__ import annotations

import shlex
from typing import Any

import click

from ...api import try_plan
from ...errors import SchedsimError
from ...plans.plan import Plan
from ...units import format_bytes
from ...workloads import build_workload, variants
from ..given.loaded import Loaded
from ..options.level_options import level_words, read_levels
from ..options.link import link_words
from ..options.rule_options import rule_words
from ..options.typed_sizes import number_text, size_text
from ..show import percent, working
from ..shown.allocations import allocator_words
from .order_advice import least_in_free_order, order_saves
from .request import DEFAULT_PLANNER, FLAGS, PlanRequest


def option_words(request: PlanRequest, plan: Plan, options: dict[str, Any]) -> list[str]:
    """The shell arguments, besides the workload and the budget, that make `plan` again."""
    same = [] if request.planner == DEFAULT_PLANNER else ["--planner", request.planner]
    for name, value in options.items():
        if name not in FLAGS and name != "seed":
            continue  # the link and the levels have words of their own
        name = "search_seed" if name == "seed" else name
        text = ",".join(value) if name == "allow" else str(value)
        same += [FLAGS[name], number_text(value) if isinstance(value, int | float) else text]
    return [
        *rule_words(options),
        *link_words(options),
        *level_words(options),
        *same,
        *allocator_words(plan),
    ]


def show_next(
    request: PlanRequest, loaded: Loaded, plan: Plan, store_all_bytes: int, options: dict[str, Any]
) -> None:
    """Print the commands that save, replay, draw and explain the plan, and compare planners.

    One more asks for a free order of a graph's ops, where that needs clearly less.
    """
    arguments, budget = request.source.arguments(), size_text(plan.budget_bytes)
    file = shlex.quote(request.output or "plan.json")
    steps = []
    if request.output is None:
        same = option_words(request, plan, options)
        words = ["schedsim plan", arguments, "--mem", budget, *same, "-o", file]
        steps.append((" ".join(words), "keep it"))
    copies = link_words(options) or level_words(options)
    also = [*rule_words(options), *link_words(options)]
    steps += [
        (f"schedsim simulate {file}", "replay it"),
        (f"schedsim plot timeline {file} -o timeline.svg", "see its memory"),
        *([] if copies else [(f"schedsim explain {file}", "why its peak is there")]),
        (
            " ".join(["schedsim compare", arguments, "--mem", budget, *also]),
            "other planners",
        ),
    ]
    if saves := order_saves(request, loaded, plan, store_all_bytes):
        same = option_words(request, plan, {**options, "order": "free"})
        steps.append((" ".join(["schedsim plan", arguments, "--mem", budget, *same]), saves))
    width = max(len(step) for step, _ in steps)
    click.echo("\nnext")
    for step, why in steps:
        click.echo(f"  {step:<{width}}  # {why}")


def explain_infeasible(request: PlanRequest, loaded: Loaded, plan: Plan) -> None:
    """Say on stderr that nothing fits, which budget would, and which changes need less memory."""
    budget, by = format_bytes(plan.budget_bytes), request.planner
    allocator = plan.setting.allocator
    if allocator is not None:
        by = f"{by} and the {allocator.name} allocator"
    click.echo(f"error: {loaded.workload.name} does not fit in {budget} with {by}", err=True)
    if plan.min_feasible_bytes is not None:
        set_by = loaded.label(plan.binding_op) if plan.binding_op else ""
        # The exact number, because one rounded to three digits might be too small.
        asked = f"--mem {size_text(plan.min_feasible_bytes)}"
        click.echo(f"hint: {plan.least.hint(asked, set_by)}", err=True)
    with working("looking at what would lower it"):
        rows = _changes(request, plan)
        if freer := least_in_free_order(request, loaded, plan):
            rows.append(freer)
    if rows:
        click.echo("\nwhat would lower it", err=True)
        width = max(len(label) for label, _, _ in rows)
        for label, fits, says in rows:
            click.echo(f"  {label:<{width}}  {fits + ', ' if fits else ''}{says}", err=True)


def _changes(request: PlanRequest, plan: Plan) -> list[tuple[str, str, str]]:
    """A row for each change of the formula that fits or needs less; none without a formula."""
    options = request.source.formula()
    if options is None:
        return []
    quick = {"time_limit_s": 1.0} if request.link else {}
    rows = []
    for label, changed in variants(options):
        try:
            workload = build_workload(changed).workload
            levels = read_levels(request.level_texts, workload)
            more = {**request.rules, **request.link, **levels, **request.memory, **quick}
            other = try_plan(workload, plan.budget_bytes, request.planner, **more)
        except SchedsimError:  # a change that the planner does not take is no advice
            continue
        least_bytes = other.min_feasible_bytes
        if other.peak_bytes is not None and other.overhead is not None:
            rows.append((label, "fits", f"{percent(other.overhead)} over its store-all"))
        elif least_bytes is not None and least_bytes < (plan.min_feasible_bytes or 0):
            rows.append((label, "", f"least {format_bytes(least_bytes)}"))
    return rows
