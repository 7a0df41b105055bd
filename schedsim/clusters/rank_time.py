"""Time of a step: ops and messages of one rank on their streams, and stages in a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from ..pipelines.order_arrays import order_arrays
from ..pipelines.order_seconds import order_makespan
from ..pipelines.orders import Action
from ..plans.links import Link
from ..simulation.simulator import simulate
from ..workloads.architecture import Architecture
from .beside_messages import played_beside
from .degrees import Degrees
from .fabric import Fabric
from .rank_memory import rank_actions
from .rank_step import RankStep
from .stages import StageParts, layer_policies, rank_stages, split_stages
from .training import Training
from .unit_seconds import UnitSeconds

if TYPE_CHECKING:
    from ..simulation.result import Simulation


@dataclass(frozen=True)
class StepTime:
    """How long a step takes.

    Attributes
    ----------
    step_s
        Seconds of the step, the optimizer included.
    compute_s
        Seconds in which the busiest rank computes.
    bubble
        Share of the time in which pipeline ranks wait for one another; 0 without a pipeline.
    timeline
        The simulation of the first rank, or with a pipeline, of one micro-batch of the longest
        stage.
    timeline_of
        What `timeline` shows, in words.
    """

    step_s: float
    compute_s: float
    bubble: float
    timeline: Simulation
    timeline_of: str


_PLAYED = 3
"""Micro-batches simulated without a pipeline; each further one takes the time of the last."""


def step_time(
    model: Architecture, degrees: Degrees, training: Training, fabric: Fabric
) -> StepTime:
    """The time of a step; equal ranks are simulated once.

    Notes
    -----
    All ranks of a stage do the same at the same time, so one rank stands for all. With a pipeline,
    each distinct stage is simulated for one micro-batch; then all stages are simulated in the order
    of the schedule, with messages between neighbours.
    """
    if degrees.pipeline == 1:
        return _plain_time(model, degrees, training, fabric)
    return _pipeline_time(model, degrees, training, fabric)


def _plain_time(
    model: Architecture, degrees: Degrees, training: Training, fabric: Fabric
) -> StepTime:
    stages = split_stages(model, degrees, training)
    count = training.micro_batches(degrees)
    fixed = replace(training, num_micro_batches=count)

    def play(num: int) -> Simulation:
        step = RankStep(model, degrees, fixed, fabric, stages, one_stream=False)
        actions = rank_actions(degrees, training, 0, num)
        return played_beside(step.write(actions))

    run = play(min(count, _PLAYED))
    step_s, compute_s = run.makespan_s, run.busy_s["compute"]
    if count > _PLAYED:
        fewer = play(_PLAYED - 1)
        step_s += (count - _PLAYED) * (run.makespan_s - fewer.makespan_s)
        compute_s += (count - _PLAYED) * (compute_s - fewer.busy_s["compute"])
    some = f"first {_PLAYED} of {count} micro-batches" if count > _PLAYED else "one step"
    return StepTime(step_s, compute_s, 0.0, run, f"any rank: {some}")


def _pipeline_time(
    model: Architecture, degrees: Degrees, training: Training, fabric: Fabric
) -> StepTime:
    stages = split_stages(model, degrees, training)
    count = training.micro_batches(degrees)
    fixed = replace(training, num_micro_batches=count)
    seen: dict[tuple[object, ...], tuple[float, float, float, Simulation]] = {}
    times = []
    for stage in stages:
        kinds = tuple(model.has_experts(i) for i in stage.layers)
        policies = layer_policies(fixed, degrees, stage)
        key = (kinds, stage.embedding, stage.head, *policies)
        if key not in seen:
            seen[key] = _stage_time(model, degrees, fixed, fabric, stage)
        times.append(seen[key])
    tokens = training.micro_batch(degrees) * training.seq // degrees.context
    part = tokens * model.hidden * 2 // training.sequence_ranks(degrees)
    unit = UnitSeconds(degrees, training, fabric)
    sums = [unit.stage_sums_s(model, stage) for stage in stages]
    forward = [forward_s for forward_s, _, _, _ in times]
    backward = [one[1] + sums_s for one, sums_s in zip(times, sums, strict=True)]
    order = order_arrays(training.schedule, degrees.pipeline, count, training.num_chunks)
    makespan_s = order_makespan(
        order, forward, backward, message_link(degrees, fabric).time_s(part)
    )
    mine = [rank_stages(stages, degrees, rank) for rank in range(degrees.pipeline)]
    busy = [
        count * sum(forward[one.number] + backward[one.number] for one in some) for some in mine
    ]
    # Gathering before the first micro-batch, reducing after the last, and the optimizer.
    ends = [sum(times[one.number][2] for one in some) for some in mine]
    longest = max(range(len(times)), key=lambda k: times[k][0] + times[k][1])
    bubble = sum(max(0.0, 1.0 - one / makespan_s) for one in busy) / len(busy)
    which = f", stage {longest}" if training.num_chunks > 1 else ""
    shown = f"pipeline rank {longest % degrees.pipeline}{which}: one of {count} micro-batches"
    return StepTime(makespan_s + max(ends), max(busy), bubble, times[longest][3], shown)


def message_link(degrees: Degrees, fabric: Fabric) -> Link:
    """The link between neighbours in the pipeline."""
    span = degrees.tensor * degrees.context * degrees.data
    return Link(fabric.rate(span + 1), fabric.latency_s)


def _stage_time(
    model: Architecture,
    degrees: Degrees,
    training: Training,
    fabric: Fabric,
    stage: StageParts,
) -> tuple[float, float, float, Simulation]:
    """(forward, backward, seconds once per step, simulation of one micro-batch) of a stage."""
    run = _played_stage(model, degrees, training, fabric, stage)
    forward_s, backward_s, total_once = split_seconds(run.run_names, run.run_s.tolist())
    if any(name.startswith(_COPIES) for name in run.run_names):
        instant = replace(fabric, host_bytes_per_s=inf)
        free = _played_stage(model, degrees, training, instant, stage)
        waits = [a - b for a, b in zip(_halves(run), _halves(free), strict=True)]
        forward_s, backward_s = forward_s + max(0.0, waits[0]), backward_s + max(0.0, waits[1])
    return forward_s, backward_s, total_once, run


_ONCE = ("gather", "unpack", "cut", "pack", "reduce", "average", "free", "optimizer", "outputs")
_COPIES = ("offload ", "fetch ")


def split_seconds(names: Sequence[str], seconds: Sequence[float]) -> tuple[float, float, float]:
    """(forward, backward, once a step) of the runs of a stage; copies to the host do not count."""
    total_once = forward_s = backward_s = 0.0
    begun = _backward_begins(names)
    for k, (name, taken_s) in enumerate(zip(names, seconds, strict=True)):
        if name.partition(" ")[0] in _ONCE:
            total_once += taken_s
        elif name.startswith(_COPIES):
            continue
        elif k >= begun:
            backward_s += taken_s
        else:
            forward_s += taken_s
    return forward_s, backward_s, total_once


def _played_stage(
    model: Architecture,
    degrees: Degrees,
    training: Training,
    fabric: Fabric,
    stage: StageParts,
) -> Simulation:
    step = RankStep(model, degrees, training, fabric, [stage], one_stream=False)
    written = step.write([Action("F", stage.number, 0), Action("B", stage.number, 0)])
    return simulate(written.graph, written.schedule)


def _backward_begins(names: Sequence[str]) -> int:
    """The first run of the backward."""
    begins = ("receive'", "picked", "loss'")
    return next((k for k, name in enumerate(names) if name.startswith(begins)), len(names))


def _halves(run: Simulation) -> tuple[float, float]:
    """Seconds until the forward computes no more, and from there to the end."""
    compute = run.stream_names.index("compute")
    before = run.run_streams[: _backward_begins(run.run_names)] == compute
    forward_s = float(run.end_s[: before.size][before].max(initial=0.0))
    return forward_s, run.makespan_s - forward_s
