"""Memory of one rank: live bytes by kind, and the bytes that the allocator reserves."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..allocators import Requests, play
from ..allocators.requests import requests_of
from ..pipelines.orders import Action, make_order
from ..workloads.architecture import Architecture
from .compiled_buffers import hand_over
from .degrees import Degrees
from .fabric import Fabric
from .rank_step import RankStep, kind_of
from .stages import StageParts, rank_parameters, rank_stages, routed_share, split_stages
from .training import Training
from .unit_shares import UnitShares, in_shares, tensor_by_tensor

if TYPE_CHECKING:
    from ..simulation.result import Simulation

_LIBRARY_BYTES = 32 << 20
"""cuBLAS's workspace on sm_90 (``CUBLAS_WORKSPACE_CONFIG``, NVIDIA cuBLAS documentation)."""


@dataclass(frozen=True)
class RankMemory:
    """The memory of one rank.

    Attributes
    ----------
    rank
        Its place in the pipeline.
    peak_bytes
        Largest bytes in use at once.
    reserved_bytes
        Bytes that PyTorch's allocator has taken from the device after several steps, gaps between
        tensors included.
    kinds
        Kind -> bytes at the peak; they add up to `peak_bytes`.
    parameters, shard
        Parameters of the rank before and after sharding.
    peak_op
        The op during which the peak is reached.
    host_bytes
        Largest bytes of offloaded tensors in host memory at once.
    """

    rank: int
    peak_bytes: int
    reserved_bytes: int
    kinds: dict[str, int]
    parameters: int
    shard: int
    peak_op: str
    host_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LastingBytes:
    """Bytes that are resident between steps.

    Attributes
    ----------
    parameters, gradients
        Resident bytes; gradients of sharded parameters exist only within a step and do not count
        here.
    moments
        Moments of the optimizer, and fp32 parameters if the step uses bf16; they are allocated at
        the end of the first step.
    messages
        Buffers of a pipeline's messages, where they are made once.
    """

    parameters: int
    gradients: int
    moments: int
    messages: int

    @property
    def total(self) -> int:
        """The sum."""
        return self.parameters + self.gradients + self.moments + self.messages


def lasting_bytes(
    model: Architecture, degrees: Degrees, training: Training, stages: list[StageParts]
) -> LastingBytes:
    """The bytes that a rank with `stages` keeps between steps.

    With ``fsdp2``, ZeRO stage 3 of Rajbhandari et al. 2020 (arXiv 1910.02054, figure 1) with
    everything in fp32: 4 + 4 + 8 bytes per parameter over the shards, gradients not counted here.
    With ``megatron``, stage 1: 2 + 4 bytes on every rank, and 12 over the data-parallel ranks of a
    replica, or, of an expert, over those that hold the same one.
    """
    whole, shard = rank_parameters(model, degrees, stages)
    count = degrees.pipeline * training.num_chunks
    tokens = training.micro_batch(degrees) * training.seq // degrees.context
    part = tokens * model.hidden * 2 // training.sequence_ranks(degrees)
    ends = sum((one.number > 0) + (one.number < count - 1) for one in stages)
    held = training.libraries.held_messages
    messages = ends * training.micro_batches(degrees) * part if held else 0
    if training.state == "fsdp2":
        return LastingBytes(4 * shard, 0, 8 * shard, messages)
    if training.state == "megatron":
        ranks = degrees.shards
        experts = sum(routed_share(model, degrees, i) for one in stages for i in one.layers)
        common = -(-12 * (whole - experts) // ranks)
        same = ranks * degrees.tensor // (degrees.expert * degrees.expert_parts)
        moments = common + -(-12 * experts // same)
        return LastingBytes(2 * whole, 4 * whole, moments, 0)
    return LastingBytes(2 * whole, 0, 4 * whole, 0)


def rank_actions(degrees: Degrees, training: Training, rank: int, most: int = 0) -> list[Action]:
    """The actions of pipeline rank `rank` for at most `most` micro-batches (0: all)."""
    count = training.micro_batches(degrees)
    if most:
        count = min(count, most)
    if degrees.pipeline == 1:
        return [Action(kind, 0, micro) for micro in range(count) for kind in "FB"]
    order = make_order(training.schedule, degrees.pipeline, count, training.num_chunks)
    return list(order[rank])


def representative_micro_batches(degrees: Degrees, training: Training) -> int:
    """Number of micro-batches after which the memory of a rank grows no further.

    Each order except ``gpipe`` repeats itself once its pipeline is full; ``interleaved`` does so
    after the first sums of gradients have been added to.
    """
    if training.schedule == "gpipe" and degrees.pipeline > 1:
        return 0
    if training.schedule == "interleaved":
        return 4 * degrees.pipeline
    return degrees.pipeline + 2 if degrees.pipeline > 1 else 3


def issue_step(
    model: Architecture,
    degrees: Degrees,
    training: Training,
    fabric: Fabric,
    rank: int,
    most: int | None = None,
) -> RankStep:
    """The step of a rank in the order in which its host issues ops, as the allocator sees it.

    By default the step stops after `representative_micro_batches`; `most` takes their place.
    """
    stages = rank_stages(split_stages(model, degrees, training), degrees, rank)
    if most is None:
        most = representative_micro_batches(degrees, training)
    actions = rank_actions(degrees, training, rank, most)
    # Sizes follow from the full number of micro-batches, even if only a part is played.
    fixed = replace(training, num_micro_batches=training.micro_batches(degrees))
    return RankStep(model, degrees, fixed, fabric, stages, one_stream=True).write(actions)


def first_micro_batch_bytes(
    model: Architecture, degrees: Degrees, training: Training, fabric: Fabric
) -> int:
    """Bytes in use at the peak of the first of several micro-batches, without a pipeline.

    The step of a rank whose parameters are gathered for each micro-batch begins with these ops, so
    that `rank_memory` reserves no less, and takes three times as long to say so.
    """
    stages = split_stages(model, degrees, training)
    state = lasting_bytes(model, degrees, training, stages)
    simulation = issue_step(model, degrees, training, fabric, 0, most=1).simulated()
    return state.total + _LIBRARY_BYTES + simulation.peak_bytes


def rank_memory(
    model: Architecture, degrees: Degrees, training: Training, fabric: Fabric, rank: int = 0
) -> RankMemory:
    """Memory of pipeline rank `rank`; all ranks of one stage are alike.

    Notes
    -----
    O(n log n) for n ops of the rank's step: a second for 100,000.
    """
    with _collector_paused():
        return _rank_memory(model, degrees, training, fabric, rank)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Without Python's collector: ops are made by the hundred thousand, and none is in a cycle.

    It would look at all of them again and again, which takes a third of the time.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _rank_memory(
    model: Architecture, degrees: Degrees, training: Training, fabric: Fabric, rank: int
) -> RankMemory:
    stages = rank_stages(split_stages(model, degrees, training), degrees, rank)
    state = lasting_bytes(model, degrees, training, stages)
    step = issue_step(model, degrees, training, fabric, rank)
    simulation = step.simulated()
    one = requests_of(simulation)
    if training.compiled:
        always = training.libraries.handed_always
        one = hand_over(one, step.layer_codes, step.layer_ops, always=always)
    fixed = state.total + _LIBRARY_BYTES
    shares = None
    if training.state == "fsdp2":
        shares = UnitShares(model, degrees, training, fabric, stages)
    allocation = play(
        _requests(one, state, shares, _allocating(training)),
        "cuda-caching",
        expandable_segments=training.expandable,
    )
    kinds = {
        "parameters": state.parameters,
        "gradients": state.gradients,
        "optimizer state": state.moments,
        "communication buffers": state.messages,
        "workspaces": _LIBRARY_BYTES,
    }
    run = simulation.peak_run
    for tensor in simulation.live_tensors(run):
        kind = kind_of(tensor.name)
        kinds[kind] = kinds.get(kind, 0) + tensor.size_bytes
    kinds["workspaces"] += int(simulation._workspace[run])
    whole, shard = rank_parameters(model, degrees, stages)
    return RankMemory(
        rank,
        fixed + simulation.peak_bytes,
        allocation.peak_reserved_bytes,
        {kind: size for kind, size in kinds.items() if size},
        whole,
        shard,
        simulation.peak_op,
        _host_bytes(simulation),
    )


def _host_bytes(simulation: Simulation) -> int:
    """The most bytes between their copies to the host and the ends of their copies back."""
    sizes = {
        op.name.partition(" ")[2]: sum(op.writes.values())
        for op in simulation._graph.ops
        if op.name.startswith("fetch ")
    }
    most = held = 0
    for name in simulation.run_names if sizes else ():
        what, _, of = name.partition(" ")
        if what in ("offload", "fetch"):
            held += sizes[of] if what == "offload" else -sizes[of]
            most = max(most, held)
    return most


def _allocating(training: Training) -> dict[str, int]:
    """First word of a tensor's name -> the stream that allocates it, but for that of compute, 0.

    A traced graph is captured as a CUDA graph, whose pool has one stream, and its collectives write
    what the stream of compute allocates (torchtitan, ``graph_trainer/cudagraph.py``).
    """
    if training.libraries.traced:
        return {}
    streams = {"AG": 1, "SG": 2}
    if training.libraries.packed_apart and training.state == "fsdp2":
        streams["RS"] = streams["SG"]
    return streams


def _requests(
    one: Requests, state: LastingBytes, shares: UnitShares | None, allocating: dict[str, int]
) -> Requests:
    """Two steps as the allocator sees them; moments come at the end of the first."""
    if shares is not None:
        one = tensor_by_tensor(one, shares)
    kept_shares = [1] if shares is None else shares.of_state()
    streams = np.array([allocating.get(name.partition(" ")[0], 0) for name in one.item_names])
    first = one.item_bytes.size
    parameters = in_shares(state.parameters, kept_shares)
    before = [*parameters, state.gradients, state.messages, _LIBRARY_BYTES]
    pairs = [(size // 2, size - size // 2) for size in in_shares(state.moments, kept_shares)]
    after = [size for pair in pairs for size in pair]
    sizes = np.array([size for size in before if size] + [size for size in after if size])
    num_before = sum(size > 0 for size in before)
    resident = np.arange(first, first + sizes.size, dtype=np.int64)
    events = one.num_events
    last = np.searchsorted(one.events, events)
    freed_at_end = one.items[last:]
    kept = one.items[:last]
    # Gradients live until the next step begins, so moments are allocated beside them.
    items = [resident[:num_before], kept, resident[num_before:], freed_at_end, one.items]
    times = [
        np.full(num_before, -1),
        one.events[:last],
        np.full(sizes.size - num_before, events),
        one.events[last:],
        one.events + events + 1,
    ]
    return Requests(
        np.concatenate(items).astype(np.int64),
        np.concatenate(times).astype(np.int64),
        np.concatenate([one.item_bytes, sizes]).astype(np.int64),
        np.concatenate([streams, np.zeros(sizes.size)]).astype(np.int64),
        (*one.item_names, *["resident state"] * sizes.size),
        2 * events + 2,
        3,
    )
