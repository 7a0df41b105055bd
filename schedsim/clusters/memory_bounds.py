"""A lower bound on the memory of a rank under FSDP2, without simulating it.

Where a backward begins, a rank holds its state, what is gathered, what the micro-batches in flight
keep, and the gradients of earlier ones. To this, the loss adds its copies of the logits, and the
stage's last layer all that its backward reads, recomputed or kept, then its whole gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..workloads.architecture import Architecture
from .degrees import Degrees
from .rank_memory import representative_micro_batches
from .rank_moments import BackwardMoment, moments_of
from .stages import StageParts, end_parameters, layer_shard, layer_share
from .training import Training


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """A layer under its policy: bytes of its input, of what it keeps, and of what its backward
    reads."""

    input_bytes: int
    kept_bytes: int
    saved_bytes: int


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
    degrees: Degrees,
    training: Training,
    rank: RankSizes,
    number: int,
    layers: list[list[LayerBytes]],
) -> int:
    """Bytes that pipeline rank `number` holds at once, whatever its allocator does.

    `layers` has, for each stage of the rank, the bytes of its layers.
    """
    count = training.micro_batches(degrees)
    played = min(count, representative_micro_batches(degrees, training) or count)
    moments = moments_of(training.schedule, degrees.pipeline, played, training.num_chunks)[number]
    resident = training.libraries.held_messages and training.state == "fsdp2"
    kept = [_kept_bytes(*pair, resident) for pair in zip(rank.stages, layers, strict=True)]
    stays = degrees.pipeline > 1 or training.zero_stage == 2
    held = _with_gathered if stays else _sharded
    return max(
        size
        for moment in moments
        for size in held(degrees, training, rank, moment, _KeptByStages(played, kept, layers))
    )


@dataclass(frozen=True, slots=True)
class _KeptByStages:
    """Micro-batches, and for each stage what one of them keeps, in all and by layer."""

    count: int
    kept: list[int]
    layers: list[list[LayerBytes]]


def _kept_bytes(stage: StageParts, layers: list[LayerBytes], resident: bool) -> int:
    """The input of a rank's first layer is a message's buffer, which may be `resident`."""
    total = sum(one.input_bytes + one.kept_bytes for one in layers)
    counted = resident and layers and not stage.embedding
    return total - (layers[0].input_bytes if counted else 0)


def _with_gathered(
    degrees: Degrees,
    training: Training,
    rank: RankSizes,
    moment: BackwardMoment,
    held: _KeptByStages,
) -> Iterator[int]:
    """Where gathered parameters stay until the last micro-batch, and whole gradients are summed."""
    total = rank.lasting_bytes
    for k, sizes in enumerate(rank.sizes):
        total += moment.in_flight[k] * held.kept[k] + moment.gathered[k] * sizes.gathered
        if moment.summed[k]:
            total += sizes.layer_sums + sizes.end_sums
    stage, layers = rank.stages[moment.stage], held.layers[moment.stage]
    outputs = 0
    if stage.head:
        earlier = training.micro_batches(degrees) - held.count  # these are not played
        outputs = (moment.num_outputs - 1 + earlier) * _raw_bytes(training, rank)
        outputs = outputs if degrees.pipeline > 1 else 0
        yield total + outputs + _loss_bytes(degrees, training, rank)
    if layers:
        gradient = 0
        if stage.head and not moment.summed[moment.stage]:
            gradient = (4 if held.count > 1 else 2) * rank.sizes[moment.stage].head
        again = max(0, layers[-1].saved_bytes - layers[-1].kept_bytes)
        yield total + outputs + gradient + again


def _sharded(
    degrees: Degrees,
    training: Training,
    rank: RankSizes,
    moment: BackwardMoment,
    held: _KeptByStages,
) -> Iterator[int]:
    """Where each layer is gathered when it is needed, and its gradients are reduced at once."""
    [sizes], [layers] = rank.sizes, held.layers
    total = rank.lasting_bytes + held.kept[0]
    gradient = (4 if held.count > 1 else 2) * sizes.head
    if moment.summed[0]:
        total += sizes.layer_shards + sizes.end_sums
        gradient = 0  # it is added in place
    yield total + rank.each * sizes.ends + _loss_bytes(degrees, training, rank)
    last = layers[-1]
    ahead = rank.each * sizes.next_to_last  # gathered for the backward of the layer before
    both = total + gradient + ahead + rank.part_bytes
    yield both + max(0, last.saved_bytes - last.kept_bytes) + rank.each * sizes.last
    # bf16 gradients of products, beside the fp32 buffer that they are packed into
    yield both - last.input_bytes - last.kept_bytes + 4 * sizes.last


def _raw_bytes(training: Training, rank: RankSizes) -> int:
    whole = training.compiled_loss or training.loss_chunks > 1
    return rank.logits_bytes // (2 if whole else 6)


def _loss_bytes(degrees: Degrees, training: Training, rank: RankSizes) -> int:
    """Copies of the logits, what they were made from, and the last layer's output."""
    return rank.logits_bytes + rank.part_bytes * degrees.tensor + rank.part_bytes
