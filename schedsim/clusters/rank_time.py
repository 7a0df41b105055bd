"""Time of a step: ops and messages of one rank on their streams, and stages in a pipeline."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from ..dataflow.chain import Chain, Stage
from ..pipelines import keep_all, make_order, make_pipeline, run_pipeline
from ..pipelines.orders import Action
from ..plans.links import Link
from ..simulation.simulator import simulate
from ..workloads.architecture import Architecture
from .degrees import Degrees
from .fabric import Fabric
from .rank_memory import rank_actions
from .rank_step import RankStep
from .stages import StageParts, layer_policies, rank_stages, split_stages
from .training import Training

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
        written = step.write(actions)
        return simulate(written.graph, written.schedule)

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
    part = tokens * model.hidden * 2 // degrees.tensor
    chain = Chain(
        "stages",
        part,
        tuple(
            Stage(f"stage{k}", forward_s, backward_s, part, part)
            for k, (forward_s, backward_s, _, _) in enumerate(times)
        ),
    )
    span = degrees.tensor * degrees.context * degrees.data
    split = training.schedule == "zero-bubble"
    link = Link(fabric.rate(span + 1), fabric.latency_s)
    pipeline = make_pipeline(
        chain,
        degrees.pipeline,
        count,
        num_chunks=training.num_chunks,
        link=link,
        split_backward=split,
    )
    order = make_order(training.schedule, degrees.pipeline, count, training.num_chunks)
    run = run_pipeline(pipeline, order, [keep_all(1)] * len(stages))
    # Gathering before the first micro-batch, reducing after the last, and the optimizer.
    ends = [
        sum(times[stage.number][2] for stage in rank_stages(stages, degrees, rank))
        for rank in range(degrees.pipeline)
    ]
    longest = max(range(len(times)), key=lambda k: times[k][0] + times[k][1])
    step_s = run.makespan_s + max(ends)
    busy = max(use.busy_s for use in run.devices)
    which = f", stage {longest}" if training.num_chunks > 1 else ""
    shown = f"pipeline rank {longest % degrees.pipeline}{which}: one of {count} micro-batches"
    return StepTime(step_s, busy, run.bubble, times[longest][3], shown)


def _stage_time(
    model: Architecture,
    degrees: Degrees,
    training: Training,
    fabric: Fabric,
    stage: StageParts,
) -> tuple[float, float, float, Simulation]:
    """(forward, backward, seconds once per step, simulation of one micro-batch) of a stage."""
    run = _played_stage(model, degrees, training, fabric, stage)
    total_once = forward_s = backward_s = 0.0
    copies = False
    begun = _backward_begins(run)
    for k, (name, seconds) in enumerate(zip(run.run_names, run.run_s.tolist(), strict=True)):
        what = name.partition(" ")[0]
        if what in _ONCE:
            total_once += seconds
        elif what in _COPIES:
            copies = True
        elif k >= begun:
            backward_s += seconds
        else:
            forward_s += seconds
    if copies:
        instant = replace(fabric, host_bytes_per_s=inf)
        free = _played_stage(model, degrees, training, instant, stage)
        waits = [a - b for a, b in zip(_halves(run), _halves(free), strict=True)]
        forward_s, backward_s = forward_s + max(0.0, waits[0]), backward_s + max(0.0, waits[1])
    return forward_s, backward_s, total_once, run


_ONCE = ("gather", "unpack", "cut", "pack", "reduce", "free", "optimizer", "outputs")
_COPIES = ("offload", "fetch")


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


def _backward_begins(run: Simulation) -> int:
    """The first run of the backward."""
    begins = ("receive'", "picked", "loss'")
    return next(
        (k for k, name in enumerate(run.run_names) if name.startswith(begins)), run.num_runs
    )


def _halves(run: Simulation) -> tuple[float, float]:
    """Seconds until the forward computes no more, and from there to the end."""
    compute = run.stream_names.index("compute")
    before = run.run_streams[: _backward_begins(run)] == compute
    forward_s = float(run.end_s[: before.size][before].max(initial=0.0))
    return forward_s, run.makespan_s - forward_s
