"""``plan --maximize``: the largest batch, sequence or depth that fits, and the fastest."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import click

from ...dataflow.chain import Chain
from ...dataflow.graph import Graph
from ...errors import InfeasibleBudgetError
from ...files.document import save
from ...plans.budgets import sized_budget
from ...plans.maximize import MAX_PLANS, MAX_SIZE, Maximum, maximize
from ...units import format_bytes
from ..app import NO, YES
from ..given.loaded import Loaded, read
from ..options.typed_sizes import size_text
from ..show import print_json, working
from .advice import option_words
from .maximum_shown import document, show
from .request import PlanRequest
from .resized import ResizedWorkload

_UNITS = {"batch": "samples", "seq": "tokens", "layers": "layers of samples"}
# A model is captured and measured at each size, which takes seconds.
_MOST_PLANS_OF_A_MODEL = 16
# With recomputation very many layers fit; beyond this limit memory is no longer the question.
_LIMITS = {"batch": MAX_SIZE, "seq": MAX_SIZE, "layers": 512}


def show_maximum(request: PlanRequest, field: str) -> int:
    """Print the largest `field` that fits, and the fastest; write the plan of the largest."""
    source, planner = request.source, request.planner
    budget_bytes = sized_budget(request.budget)
    sizes = ResizedWorkload.of(source, field)

    @functools.cache  # a model is captured once for each size
    def at(size: int) -> Loaded:
        return read(sizes.source(size), movable=bool(request.link))

    def family(size: int) -> tuple[Chain | Graph, dict[str, Any]]:
        workload = at(size).workload
        return workload, request.options(workload)

    first = at(sizes.step).workload  # shows errors early, and loads the simulator
    try:
        with working(f"looking for the largest {field}"):
            found = maximize(
                family,
                budget_bytes,
                planner,
                work=sizes.work,
                unit=_UNITS[field],
                step=sizes.step,
                max_size=_LIMITS[field],
                compare=not source.is_model,
                max_plans=_MOST_PLANS_OF_A_MODEL if source.is_model else MAX_PLANS,
                **request.memory,
            )
    except InfeasibleBudgetError as error:
        least = error.min_feasible_bytes
        click.echo(
            f"error: {first.name} does not fit in {format_bytes(budget_bytes)} with {planner}, "
            f"even with {field} {sizes.step}",
            err=True,
        )
        if least is not None:
            click.echo(
                f"hint: {error.plan.least.sentence()} there: --mem {size_text(least)}",
                err=True,
            )
        return NO
    found = _as_remembered(found, sizes, at(found.largest.size))
    if request.output is not None:
        save(found.largest.plan, request.output)
    if request.as_json:
        print_json(document(found, field, budget_bytes))
    else:
        show(found, field, budget_bytes)
        click.echo("\nnext")
        for title, sized in (("the largest", found.largest), ("the fastest", found.fastest)):
            arguments = sizes.source(sized.size).arguments()
            options = request.options(at(sized.size).workload)
            words = ["schedsim plan", arguments, "--mem", size_text(budget_bytes)]
            words += option_words(request, sized.plan, options)
            click.echo(f"  {' '.join(words)}  # {title}")
    return YES


def _as_remembered(found: Maximum, sizes: ResizedWorkload, largest: Loaded) -> Maximum:
    """`found` with a largest plan that remembers the workload at its size."""
    plan = found.largest.plan
    origin = sizes.source(found.largest.size).origin
    plan = largest.remembered_by(plan, origin)
    if largest.origin is not None:
        plan = replace(plan, setting=replace(plan.setting, step=largest.origin))
    return replace(found, largest=replace(found.largest, plan=plan))
