"""Seconds of a stage beside those of its layers: its ends, and what it does once in a step."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..pipelines.orders import Action
from ..workloads.architecture import Architecture
from .degrees import Degrees
from .fabric import Fabric
from .rank_step import RankStep
from .rank_time import split_seconds
from .stages import StageParts, end_parameters, layer_shard, layer_share
from .training import Training
from .unit_seconds import UnitSeconds


@dataclass(frozen=True, slots=True)
class EndSeconds:
    """Of embedding, head and loss of a stage: for a micro-batch, and once a step.

    `embed_s` and `embed_back_s` are the embedding's part of `forward_s` and `backward_s`.
    `unpack_s` and `pack_s` are what moves its gathered parameters and its gradients, `gather_s`,
    `reduce_s` and `average_s` their messages. None of them is the optimizer's.
    """

    forward_s: float = 0.0
    backward_s: float = 0.0
    gather_s: float = 0.0
    unpack_s: float = 0.0
    pack_s: float = 0.0
    reduce_s: float = 0.0
    average_s: float = 0.0
    embed_s: float = 0.0
    embed_back_s: float = 0.0

    @property
    def once_s(self) -> float:
        """Once a step."""
        return self.gather_s + self.unpack_s + self.pack_s + self.reduce_s + self.average_s


def end_seconds(
    model: Architecture,
    degrees: Degrees,
    training: Training,
    fabric: Fabric,
    stage: StageParts,
) -> EndSeconds:
    """Of `stage`, whose layers do not count."""
    if not (stage.embedding or stage.head):
        return EndSeconds()
    none = range(stage.layers.stop, stage.layers.stop)
    bare = StageParts(stage.number, none, stage.embedding, stage.head)
    fixed = replace(training, recompute="none", num_micro_batches=training.micro_batches(degrees))
    actions = [Action("F", stage.number, 0), Action("B", stage.number, 0)]
    step = RankStep(model, degrees, fixed, fabric, [bare], one_stream=False).write(actions)
    names = [step.ops[k].name for k in step.runs]
    seconds = [step.ops[k].time_s for k in step.runs]
    forward_s, backward_s, _ = split_seconds(names, seconds)

    def of(*words: str) -> float:
        pairs = zip(names, seconds, strict=True)
        return sum(taken_s for name, taken_s in pairs if name.partition(" ")[0] in words)

    return EndSeconds(
        forward_s,
        backward_s,
        of("gather"),
        of("unpack"),
        of("pack", "cut"),
        of("reduce"),
        of("average"),
        of("embed"),
        of("rows'", "embed'", "own"),
    )


@dataclass(frozen=True, slots=True)
class LayerOnce:
    """What moves the parameters and the gradients of a layer when they are gathered or reduced."""

    gather_s: float
    unpack_s: float
    pack_s: float
    reduce_s: float
    average_s: float
    sum_s: float

    @property
    def total_s(self) -> float:
        """Gathered once, and reduced once."""
        return self.gather_s + self.unpack_s + self.pack_s + self.reduce_s + self.average_s


def layer_once(
    model: Architecture,
    degrees: Degrees,
    training: Training,
    fabric: Fabric,
    layer: int,
    gathered_bytes: int,
) -> LayerOnce:
    """Of `layer`, whose parameters are gathered in so many bytes."""
    count, shard = layer_share(model, degrees, layer), layer_shard(model, degrees, layer)
    unit = UnitSeconds(degrees, training, fabric)
    reduce_s, average_s = unit.reduce_s(count), unit.average_s(shard)
    if training.state != "fsdp2":
        return LayerOnce(0.0, 0.0, 0.0, reduce_s, average_s, 0.0)
    pack_s = unit.pack_s(count)
    return LayerOnce(
        unit.link_s(gathered_bytes),
        unit.unpack_s(gathered_bytes),
        pack_s,
        reduce_s,
        average_s,
        unit.sum_s(count),
    )


def optimizer_s(
    model: Architecture,
    degrees: Degrees,
    training: Training,
    fabric: Fabric,
    stages: list[StageParts],
) -> float:
    """Seconds of the optimizer of a rank with `stages`, as its last op takes them."""
    whole = shard = 0
    for stage in stages:
        ends = list(end_parameters(model, stage, degrees))
        if stage.embedding and stage.head and not training.separate_head:
            ends = [sum(ends)]
        whole += sum(ends) + sum(layer_share(model, degrees, one) for one in stage.layers)
        shard += sum(-(-one // degrees.shards) for one in ends)
        shard += sum(layer_shard(model, degrees, one) for one in stage.layers)
    num_layers = sum(len(stage.layers) for stage in stages)
    return UnitSeconds(degrees, training, fabric).optimizer_s(shard, whole, num_layers)
