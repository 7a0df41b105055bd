"""A lower bound on the memory of a rank, without simulating it.

Where a backward begins, a rank holds its state, what is gathered, what the micro-batches in flight
keep, and the gradients of earlier ones. To this, the loss adds its copies of the logits, and the
stage's last layer what its backward holds at its peak, then its whole gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..workloads.architecture import Architecture
from .degrees import Degrees
from .rank_loss import logits_copies
from .rank_memory import representative_micro_batches
from .rank_moments import BackwardMoment, moment_tables, moments_of
from .stages import StageParts, end_parameters, layer_shard, layer_share
from .training import Training


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """A layer under its policy: bytes of its input, of what it keeps and reads, and of its own
    tensors at the peak of its backward."""

    input_bytes: int
    kept_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class KeptByStage:
    """What one micro-batch keeps in a stage: in all, as its first input, and of its last layer."""

    total_bytes: int
    first_input_bytes: int
    last: LayerBytes | None

    @classmethod
    def of_layers(cls, layers: list[LayerBytes]) -> KeptByStage:
        """The sum over `layers`."""
        if not layers:
            return cls(0, 0, None)
        total = sum(one.input_bytes + one.kept_bytes for one in layers)
        return cls(total, layers[0].input_bytes, layers[-1])


@dataclass(frozen=True, slots=True)
class StageSizes:
    """Sizes of a stage that no recomputation changes.

    Attributes
    ----------
    gathered, layer_sums, end_sums
        Bytes of its gathered parameters, of the fp32 sums of its layers' whole gradients, and of
        those of embedding and head.
    head
        Parameters of the head's matrix on this rank.
    layer_shards
        Bytes of the reduced gradients of its layers.
    last, next_to_last
        Parameters of its last layer, and of the one before.
    ends
        Parameters that are gathered where the loss is.
    """

    gathered: int
    layer_sums: int
    end_sums: int
    head: int
    layer_shards: int
    last: int
    next_to_last: int
    ends: int


def stage_sizes(
    model: Architecture, degrees: Degrees, training: Training, stage: StageParts, each: int
) -> StageSizes:
    """Of `stage`; a gathered parameter takes at least `each` bytes."""
    shares = [layer_share(model, degrees, number) for number in stage.layers]
    matrix = -(-model.vocab * model.hidden // degrees.tensor)
    embedding, head = end_parameters(model, stage, degrees)
    # Alone, the embedding is freed after its last forward.
    ends = embedding + head if stage.head and not training.separate_head else head
    return StageSizes(
        each * (sum(shares) + ends),
        4 * sum(shares),
        4 * (matrix * stage.head + _summed_embedding(model, degrees) * stage.embedding),
        matrix if stage.head else 0,
        4 * sum(layer_shard(model, degrees, number) for number in stage.layers),
        shares[-1] if shares else 0,
        shares[-2] if len(shares) > 1 else 0,
        ends,
    )


def _summed_embedding(model: Architecture, degrees: Degrees) -> int:
    """Elements of the sum of the embedding's gradient: a pipeline sums it whole on each rank."""
    whole = model.vocab * model.hidden
    return whole if degrees.pipeline > 1 else -(-whole // degrees.tensor)


@dataclass(frozen=True, slots=True)
class RankSizes:
    """A rank: its stages, the bytes it keeps between steps, and those of a gathered parameter."""

    stages: list[StageParts]
    sizes: list[StageSizes]
    lasting_bytes: int
    each: int
    logits_bytes: int
    part_bytes: int


def least_bytes(
    degrees: Degrees, training: Training, rank: RankSizes, number: int, kept: list[KeptByStage]
) -> int:
    """Bytes that pipeline rank `number` holds at once, whatever its allocator does.

    `kept` is what a micro-batch keeps in each stage of the rank.
    """
    count = training.micro_batches(degrees)
    played = min(count, representative_micro_batches(degrees, training) or count)
    order = (training.schedule, degrees.pipeline, played, training.num_chunks)
    if degrees.pipeline > 1 or training.zero_stage == 2 or training.state != "fsdp2":
        return _with_gathered(degrees, training, rank, order, number, kept)
    return max(
        size
        for moment in moments_of(*order)[number]
        for size in _sharded(degrees, training, rank, moment, played, kept[0])
    )


def _with_gathered(
    degrees: Degrees,
    training: Training,
    rank: RankSizes,
    order: tuple[str, int, int, int],
    number: int,
    kept: list[KeptByStage],
) -> int:
    """Where parameters stay until the last micro-batch, and whole gradients are summed."""
    moments = moment_tables(*order)[number]
    played, gathers = order[2], training.state == "fsdp2"
    # The input of a rank's first layer is a message's buffer, which may be resident.
    resident = training.libraries.held_messages or not gathers
    held = [
        one.total_bytes - (one.first_input_bytes if resident and not stage.embedding else 0)
        for stage, one in zip(rank.stages, kept, strict=True)
    ]
    total = rank.lasting_bytes + moments.in_flight @ np.array(held, dtype=np.int64)
    if gathers:
        sums = [sizes.layer_sums + sizes.end_sums for sizes in rank.sizes]
        total += moments.gathered @ np.array([one.gathered for one in rank.sizes], dtype=np.int64)
        total += moments.summed @ np.array(sums, dtype=np.int64)
    most = 0
    returns = degrees.pipeline > 1 and gathers and not training.libraries.dropped_outputs
    if returns and any(stage.head for stage in rank.stages):
        # The last stage's outputs of all micro-batches, and once more in one.
        most = rank.lasting_bytes + 2 * training.micro_batches(degrees) * _raw_bytes(training, rank)
    for k, (stage, one) in enumerate(zip(rank.stages, kept, strict=True)):
        here = moments.stage == k
        if not here.any():
            continue
        size = total[here]
        if stage.head:
            if returns:
                earlier = training.micro_batches(degrees) - played  # these are not played
                size += (moments.num_outputs[here] - 1 + earlier) * _raw_bytes(training, rank)
            most = max(most, int(size.max()) + _loss_bytes(degrees, training, rank, stage))
            if gathers:  # else gradients are resident, or not summed
                each = 4 if played > 1 else 2
                size += (1 - moments.summed[here, k]) * each * rank.sizes[k].head
        if gathers and degrees.pipeline == 1:
            size -= rank.each * rank.sizes[k].ends  # the last micro-batch reads them no more
        if one.last is not None:
            most = max(most, int(size.max()) + one.last.peak_bytes - one.last.kept_bytes)
    return most


def _sharded(
    degrees: Degrees,
    training: Training,
    rank: RankSizes,
    moment: BackwardMoment,
    played: int,
    kept: KeptByStage,
) -> Iterator[int]:
    """Where each layer is gathered when it is needed, and its gradients are reduced at once."""
    [sizes], last = rank.sizes, kept.last
    assert last is not None  # the only stage has all layers
    total = rank.lasting_bytes + kept.total_bytes
    gradient = (4 if played > 1 else 2) * sizes.head
    if moment.summed[0]:
        total += sizes.layer_shards + sizes.end_sums
        gradient = 0  # it is added in place
    [stage] = rank.stages
    yield total + rank.each * sizes.ends + _loss_bytes(degrees, training, rank, stage)
    ahead = rank.each * sizes.next_to_last  # gathered for the backward of the layer before
    both = total + gradient + ahead
    yield both + last.peak_bytes - last.kept_bytes + rank.each * sizes.last
    # The gradient of its input, and the buffer that its gradients are packed into.
    packed = training.reduced_bytes * sizes.last
    yield both + rank.part_bytes - last.input_bytes - last.kept_bytes + packed


def _raw_bytes(training: Training, rank: RankSizes) -> int:
    return rank.logits_bytes // logits_copies(training)


def _loss_bytes(degrees: Degrees, training: Training, rank: RankSizes, stage: StageParts) -> int:
    """Copies of the logits, what they were made from, and the last layer's output.

    Without a layer, that output is a message, whose buffer may be resident.
    """
    output = rank.part_bytes if stage.layers else 0
    whole = rank.part_bytes * training.sequence_ranks(degrees)
    return rank.logits_bytes + whole + output
