"""``--accumulate``, ``--chunk``, ``--ways``: plan a model with changes of its step, or price
them."""

from __future__ import annotations

from dataclasses import replace

import click

from ...errors import SchedsimError
from ...files.document import save, to_dict
from ...plans.offloading import Offloading
from ...simulation.schedule import Schedule
from ...simulation.simulator import simulate
from ..app import INTERRUPTED, YES
from ..dry import on_device
from ..given.loaded import Loaded, need_torch
from ..show import print_json, working
from .facts import show_plan
from .request import PlanRequest


def plan_ways(request: PlanRequest) -> int:
    """Plan the model in the fastest way that is allowed, write and print; the exit code."""
    source, link = request.source, request.link
    if not source.is_model or len(source.files) != 1:
        raise SchedsimError(
            "--accumulate, --chunk and --ways are for real models",
            hint="as in schedsim plan model:gpt2,layers=4 --mem 2GB --accumulate auto",
        )
    source.formula()  # refuses formula options
    on_device(source.options["device"])
    need_torch()
    from ...validation.ways.commands import plan_target

    offload = None
    if link:
        over = Offloading.over(link["link"], latency_s=link.get("host_latency_s"))
        offload = (over.d2h, over.h2d)
    with working("capturing and planning each way"):
        outcome = plan_target(
            source.files[0],
            request.budget,
            level=source.level or "block",
            device=source.options["device"],
            planner=request.planner,
            options=request.own,
            chunk=request.chunk,
            accumulate=request.accumulate,
            offload=offload,
            host_bytes=link.get("host_bytes"),
            price_all=request.price_all,
            remeasure=source.again,
        )
    plan = replace(outcome.plan, workload=replace(outcome.plan.workload, source=source.origin))
    if request.output is not None:
        save(plan, request.output)
    loaded = Loaded(outcome.workload, outcome.lines, None, outcome.workload)
    for line in loaded.assumptions:
        click.echo(line, err=request.as_json)
    if request.as_json:
        print_json({**to_dict(plan), "ways": [way.to_dict() for way in outcome.ways]})
        return INTERRUPTED if plan.search.interrupted else YES
    click.echo()
    everything = simulate(loaded.workload, Schedule.store_all(loaded.workload))
    show_plan(loaded, plan, everything)
    if request.output is not None:
        call = f"schedsim.apply(model, {request.output!r}, inputs, loss)"
        click.echo(f"\nnext\n  {call}  # in Python: train by it")
    return INTERRUPTED if plan.search.interrupted else YES
