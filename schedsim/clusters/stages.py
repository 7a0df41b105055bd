"""The layers, embedding and head of each pipeline stage, and their parameters."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import SchedsimError
from ..workloads.architecture import Architecture
from .degrees import Degrees
from .kept_names import split_host
from .training import Training, counted_layers, policies_of


@dataclass(frozen=True, slots=True)
class StageParts:
    """One pipeline stage."""

    number: int
    layers: range
    embedding: bool
    head: bool


def split_stages(model: Architecture, degrees: Degrees, training: Training) -> list[StageParts]:
    """Stages with about equally many layers; spare layers go to the middle, ends may have none.

    Examples
    --------
    >>> from schedsim.clusters import get_architecture
    >>> model = get_architecture("llama3-405b")
    >>> stages = split_stages(model, Degrees(pipeline=8), Training())
    >>> [len(stage.layers) for stage in stages]
    [15, 16, 16, 16, 16, 16, 16, 15]
    """
    count = degrees.pipeline * training.num_chunks
    each, more = divmod(model.num_layers, count)
    # The embedding and the head take the time of about a layer: spare layers go to the middle.
    first = (count - more + 1) // 2
    sizes = [each + (first <= k < first + more) for k in range(count)]
    found, start = [], 0
    for k, size in enumerate(sizes):
        found.append(StageParts(k, range(start, start + size), k == 0, k == count - 1))
        start += size
    return found


def layer_policies(training: Training, degrees: Degrees, stage: StageParts) -> list[str]:
    """The policy of each layer of a stage; the model's last layer is not offloaded.

    Its backward comes right after its forward.

    Examples
    --------
    >>> last = StageParts(1, range(2, 4), False, True)
    >>> layer_policies(Training(recompute="full@host"), Degrees(pipeline=2), last)
    ['full@host', 'full']
    """
    return stage_policies(training.recompute, degrees, stage)


def stage_policies(recompute: str, degrees: Degrees, stage: StageParts) -> list[str]:
    """As `layer_policies`, of a setting ``recompute``."""
    found = policies_of(recompute, len(stage.layers), stage.number % degrees.pipeline)
    return [*found[:-1], split_host(found[-1])[0]] if stage.head and found else found


def check_policies(model: Architecture, degrees: Degrees, training: Training) -> None:
    """Raise `SchedsimError` where ``--recompute`` speaks of layers that no stage of a rank has."""
    stages = split_stages(model, degrees, training)
    of_ranks = training.recompute.split("/")
    for rank, policy in enumerate(of_ranks):
        mine = stages if len(of_ranks) == 1 else rank_stages(stages, degrees, rank)
        most = max(len(stage.layers) for stage in mine)
        parts = policy.split(",")
        if any(":" not in part for part in parts[:-1]):
            raise SchedsimError(
                f"--recompute {policy}: nothing is left for {parts[-1]!r}",
                hint="give a count of layers to each policy but the last: full:4,none",
            )
        if len(parts) > 1 or ":" in policy:
            of = "the model" if degrees.pipeline == 1 else "a stage"
            if counted_layers(policy) > most:
                raise SchedsimError(
                    f"--recompute {policy} speaks of {counted_layers(policy)} layers, and {of} has "
                    f"{most}" + ("" if degrees.pipeline == 1 else " at most"),
                    hint="counts are of the layers of one stage, first to last",
                )


def rank_stages(stages: list[StageParts], degrees: Degrees, rank: int) -> list[StageParts]:
    """The stages of pipeline rank `rank`."""
    return stages[rank :: degrees.pipeline]


def layer_share(model: Architecture, degrees: Degrees, layer: int) -> int:
    """Parameters of a layer on one rank before sharding: its part of products and of experts."""
    common = -(-model.shared_parameters(layer) // degrees.tensor)
    return common + routed_share(model, degrees, layer)


def routed_share(model: Architecture, degrees: Degrees, layer: int) -> int:
    """Parameters of a layer's routed experts on one rank before sharding."""
    return -(-model.routed_parameters(layer) // (degrees.expert_parts * degrees.expert))


def layer_shard(model: Architecture, degrees: Degrees, layer: int) -> int:
    """Parameters of a layer on one rank after sharding.

    Routed experts are split over the expert-parallel ranks first, then over the other sharding
    ranks; each parameter has one owner.
    """
    common = -(-model.shared_parameters(layer) // (degrees.tensor * degrees.shards))
    routed = -(-model.routed_parameters(layer) // (degrees.tensor * degrees.shards))
    return common + routed


def end_parameters(model: Architecture, stage: StageParts, degrees: Degrees) -> tuple[int, int]:
    """(of the embedding, of the head) on one rank before sharding."""
    embedding = -(-model.embedding_parameters // degrees.tensor) if stage.embedding else 0
    head = -(-model.head_parameters // degrees.tensor) if stage.head else 0
    if stage.head and model.tied and not stage.embedding:
        head += -(-model.vocab * model.hidden // degrees.tensor)  # a copy of the embedding
    return embedding, head


def rank_parameters(
    model: Architecture, degrees: Degrees, stages: list[StageParts]
) -> tuple[int, int]:
    """(before, after) sharding: parameters of one rank that holds `stages`."""
    whole = shard = 0
    for stage in stages:
        ends = sum(end_parameters(model, stage, degrees))
        whole += ends + sum(layer_share(model, degrees, i) for i in stage.layers)
        shard += -(-ends // degrees.shards)
        shard += sum(layer_shard(model, degrees, i) for i in stage.layers)
    return whole, shard
