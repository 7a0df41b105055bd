"""Lower bounds on the step time of a pipeline: fill, one device's work, drain.

Two paths lead through a device: the way there, all of its work, and the way back; or the way there,
on to the loss and back to its first backward, what work it has left then, and the way back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from schedsim.dataflow.chain import Stage
from schedsim.pipelines import Order, Pipeline
from schedsim.plans.scope import PERSISTENT_IN_PARTITION, Scope

from ._device_choices import mean_bound
from .stage_frontier import StageFrontiers


@dataclass(frozen=True, slots=True)
class LeastWork:
    """Least times of a stage for all micro-batches, in seconds.

    Attributes
    ----------
    all_s
        With all recomputation.
    after_first_s
        With the recomputation of all micro-batches but the first.
    """

    all_s: float
    after_first_s: float


def work_bound(pipeline: Pipeline) -> float:
    """A bound on every schedule of this partition, in seconds, whatever its order and memory.

    Device k begins when a micro-batch has come through the stages before its first stage, then
    works for all micro-batches, and its last micro-batch has those stages to go back through::

        max over k of  sum_{v < k} (F_v + B_v)  +  M * (work of device k)

    With a split backward, gradients of weights may come last and are sent nowhere: the way back is
    left out. Messages are counted on both ways. O(stages).

    Examples
    --------
    >>> from schedsim.pipelines import make_pipeline
    >>> from schedsim.workloads.synthetic import uniform
    >>> round(work_bound(make_pipeline(uniform(8), 4, 8)), 9)  # (8 + 4 - 1) * 6 ms
    0.066
    """
    times = [pipeline.stage_work_s(v) for v in range(pipeline.num_stages)]
    best = 0.0
    for k in range(pipeline.num_devices):
        mine = range(k, pipeline.num_stages, pipeline.num_devices)
        work = pipeline.num_micro_batches * sum(sum(times[v]) for v in mine)
        best = max(best, round_trip_s(pipeline, k) + work)
    return best


def round_trip_s(pipeline: Pipeline, stage: int) -> float:
    """The least time to the start of `stage` and back from it, in seconds."""
    total = 0.0
    sizes = pipeline.chain.activation_bytes().tolist()
    for v in range(stage):
        forward_s, backward_s = pipeline.stage_work_s(v)
        message_s = 0.0
        if pipeline.device_of(v) != pipeline.device_of(v + 1):
            message_s = pipeline.message_s(sizes[pipeline.cuts[v + 1]])
        total += forward_s + message_s
        if not pipeline.split_backward:
            total += backward_s + message_s
    return total


def held_at_once(order: Order, stage: int) -> int:
    """The most micro-batches of `stage` that are between their forward and their backward."""
    most = now = 0
    for actions in order:
        for action in actions:
            if action.stage == stage:
                now += {"F": 1, "B": -1, "W": 0}[action.kind]
                most = max(most, now)
    return most


def holds_neighbours(order: Order, stage: int) -> bool:
    """Whether every `held_at_once` micro-batches in a row are held together at some time."""
    most = held_at_once(order, stage)
    held: list[int] = []
    seen = set()
    total = 0
    for actions in order:
        for action in actions:
            if action.stage != stage or action.kind == "W":
                continue
            if action.kind == "F":
                held.append(action.micro)
                total = max(total, action.micro + 1)
                if len(held) == most:
                    seen.add(tuple(sorted(held)))
            else:
                held.remove(action.micro)
    return all(tuple(range(j, j + most)) in seen for j in range(total - most + 1))


def stage_bound(
    fronts: StageFrontiers,
    pipeline: Pipeline,
    lo: int,
    hi: int,
    room_bytes: int,
    num_held: int,
) -> LeastWork:
    """Least time of layers ``lo..hi-1`` for all micro-batches, in seconds, within `room_bytes`.

    Any `num_held` micro-batches in a row are held together at some time, so that on average they
    hold at most ``room_bytes / num_held`` each, and take at least the lower convex envelope of time
    over held bytes. Those outside of whole groups take at least their store-all time.
    """
    layers = pipeline.chain.stages[lo:hi]
    plain = math.fsum([y.forward_s for y in layers] + [y.backward_s for y in layers])
    loss = pipeline.chain.loss_s if hi == pipeline.chain.num_stages else 0.0
    plain += loss
    num = pipeline.num_micro_batches
    if num_held < 1:
        return LeastWork(num * plain, num * plain)
    front = fronts.front(lo, hi)
    input_bytes = pipeline.chain.input_bytes if lo == 0 else layer_output(pipeline, lo - 1)
    held = room_bytes / num_held - input_bytes
    least = plain + dropped_s(layers, held, frees_output=fronts.frees_outputs)
    if front.complete:
        least = max(least, loss + mean_bound(front, held))
    if math.isinf(least):
        return LeastWork(least, least)

    def work(recomputing: int) -> float:
        return num * plain + recomputing // num_held * num_held * (least - plain)

    return LeastWork(work(num), work(num - 1))


def dropped_s(layers: Sequence[Stage], held_bytes: float, *, frees_output: bool) -> float:
    """Least time of the forwards that run again if the layers hold `held_bytes` of their bundles.

    A layer whose bundle is not held runs forward again, whatever else is held; shares of layers are
    counted as shares. Of several micro-batches with so much on average, this is a bound on the
    mean. Infinite where `held_bytes` is negative. O(layers log layers).

    Examples
    --------
    >>> from schedsim.workloads.synthetic import uniform
    >>> layers = uniform(4).stages  # each 1 ms and 8 MB
    >>> round(dropped_s(layers, 20e6, frees_output=False), 6)  # 12 of 32 MB
    0.0015
    """
    if held_bytes < 0:
        return math.inf
    sizes = [layer.saved_bytes for layer in layers]
    if frees_output:
        sizes[-1] -= layers[-1].output_bytes
    excess, total_s = sum(sizes) - held_bytes, 0.0
    prices = sorted(
        (layer.forward_s / size, size)
        for layer, size in zip(layers, sizes, strict=True)
        if size > 0
    )
    for price, size in prices:
        if excess <= 0:
            break
        total_s += price * min(size, excess)
        excess -= size
    return total_s


def first_turn_s(
    pipeline: Pipeline,
    order: Order,
    stage: int,
    work: LeastWork,
    times: Sequence[tuple[float, float]],
) -> float:
    """A bound by the first backward of `stage`, in seconds; 0 with split backwards.

    Before its gradient is there, a micro-batch has gone through all stages and back to this one, in
    which time this stage has run no more than its forwards before that backward, and what the
    backward itself recomputes. All other work comes after, and then the way back from this stage.
    `times` are forward and backward of each stage.
    """
    if pipeline.split_backward:
        return 0.0
    messages = _messages_s(pipeline)
    way = math.fsum(forward_s for forward_s, _ in times[: stage + 1])
    way += math.fsum(forward_s + backward_s for forward_s, backward_s in times[stage + 1 :])
    way += math.fsum(messages) + math.fsum(messages[stage:])
    drain = math.fsum(backward_s for _, backward_s in times[:stage]) + math.fsum(messages[:stage])
    return way + work.after_first_s - forwards_first(order, stage) * times[stage][0] + drain


def forwards_first(order: Order, stage: int) -> int:
    """The number of forwards of `stage` before its first backward."""
    count = 0
    for actions in order:
        for action in actions:
            if action.stage == stage:
                if action.kind == "B":
                    return count
                count += action.kind == "F"
    return count


def _messages_s(pipeline: Pipeline) -> list[float]:
    """Seconds of a message from each stage to the next; of one stage less than there are."""
    sizes = pipeline.chain.activation_bytes().tolist()
    return [pipeline.message_s(sizes[cut]) for cut in pipeline.cuts[1:-1]]


def memory_bound(
    fronts: StageFrontiers, pipeline: Pipeline, order: Order, budget_bytes: int
) -> float:
    """The bound of `work_bound`, with recomputation, and with the wait for the first gradient.

    It holds over persistent recomputation in `order`: what a micro-batch holds between its forward
    and its backward stays until that layer's backward. With several stages a device it is
    `work_bound`. It is infinite where no recomputation fits at all.
    """
    bound = work_bound(pipeline)
    if pipeline.num_chunks > 1 or pipeline.collectives:
        return bound
    times = [pipeline.stage_work_s(v) for v in range(pipeline.num_stages)]
    for v in range(pipeline.num_stages):
        if not holds_neighbours(order, v):
            continue
        room = budget_bytes - pipeline.device_static_bytes[v]
        lo, hi = pipeline.cuts[v], pipeline.cuts[v + 1]
        work = stage_bound(fronts, pipeline, lo, hi, room, held_at_once(order, v))
        bound = max(
            bound,
            round_trip_s(pipeline, v) + work.all_s,
            first_turn_s(pipeline, order, v, work, times),
        )
    return bound


def layer_output(pipeline: Pipeline, layer: int) -> int:
    """Bytes that `layer` passes on."""
    return pipeline.chain.stages[layer].output_bytes


def partition_scope(cuts: Sequence[int]) -> Scope:
    """The class of schedules of a bound over the partitions that have this many stages."""
    return replace(PERSISTENT_IN_PARTITION, partition=len(cuts) - 1)
