"""``schedsim pipeline``: layers over devices, micro-batches, and what each stage recomputes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from ..files.atomic import write_atomically
from ..units import format_bytes, format_bytes_short, format_seconds
from .app import YES
from .given.made_pipeline import explain_infeasible, planned
from .given.pipeline_options import PipelineRequest, pipeline_options
from .help import GroupedCommand
from .options.files import json_option, output_option
from .show import percent, print_facts, print_json, print_table, working

if TYPE_CHECKING:
    from ..algorithms.pipelines.plan_pipeline import PipelinePlan
    from ..pipelines import PipelineRun


@click.command(
    "pipeline",
    cls=GroupedCommand,
    short_help="Layers over devices: order, recomputation, partition.",
)
@json_option
@output_option("Write the plan to FILE, as JSON.")
@pipeline_options
def command(request: PipelineRequest, as_json: bool, output: str | None) -> int:
    """Simulate a pipeline; with --mem, choose what each stage recomputes so that all devices fit.

    Exit code 1 if a device does not fit, or if a replay differs from its plan.

    \b
    schedsim pipeline --layers 96 --stages 8 --micro-batches 64
    schedsim pipeline --layers 96 --stages 8 --micro-batches 64 --mem 80GB --partition auto
    schedsim pipeline --replay plan.json
    schedsim plot pipeline --layers 8 --stages 4 --micro-batches 8 -o pipeline.svg
    """
    with working("planning the pipeline"):
        made = planned(request)
    if output is not None:
        write_atomically(output, json.dumps(made.document(), indent=1) + "\n")
    for line in made.lines:
        click.echo(line, err=as_json)
    if as_json:
        print_json(made.document())
    elif made.plan.run is not None:
        click.echo()
        _show(made.plan, made.plan.run)
    made.check()
    return YES if made.plan.feasible else explain_infeasible(made.plan)


def _show(found: PipelinePlan, run: PipelineRun) -> None:
    pipeline = found.pipeline
    facts = [("plan", f"{found.status}, in {format_seconds(found.planning_s)}")]
    if found.budget_bytes is not None:
        facts.append(("budget", f"{format_bytes(found.budget_bytes)} per device"))
    worst = max(run.devices, key=lambda use: use.peak_bytes)
    facts += [
        ("peak", f"{format_bytes(worst.peak_bytes)} on device {worst.device}"),
        (
            "step time",
            f"{format_seconds(run.makespan_s)}, {percent(run.overhead)} over devices that never "
            f"wait, {format_seconds(pipeline.ideal_s)}",
        ),
        ("bubble", f"{run.bubble:.2%}".replace("%", " %")),
        (
            "lower bound",
            f"{format_seconds(found.lower_bound_s)} over {found.bound_scope}, "
            f"gap {(found.gap or 0):.2%}".replace("%", " %"),
        ),
    ]
    print_facts(facts)
    click.echo()
    rows = []
    for use in run.devices:
        stages = range(use.device, pipeline.num_stages, pipeline.num_devices)
        layers = [pipeline.stage_layers(v) for v in stages]
        rows.append(
            (
                str(use.device),
                " ".join(f"{y.start}..{y.stop - 1}" for y in layers),
                format_bytes_short(use.peak_bytes),
                format_bytes_short(use.static_bytes),
                f"{use.bubble:.1%}".replace("%", " %"),
                format_seconds(use.recompute_s),
                f"{_replayed(run, use.device):.3g} of {use.num_layers}",
            )
        )
    headers = ("device", "layers", "peak", "state", "bubble", "recompute", "run again")
    print_table(headers, rows, left=2)


def _replayed(run: PipelineRun, device: int) -> float:
    """Average number of layer forwards that run again per micro-batch."""
    from ..pipelines import StagePlan

    total = 0.0
    for v in range(device, run.pipeline.num_stages, run.pipeline.num_devices):
        several = run.plans[v]
        plans = [several] if isinstance(several, StagePlan) else several
        total += sum(one.num_replays for one in plans) / len(plans)
    return total
