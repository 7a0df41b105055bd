"""Seconds of what moves a unit of parameters: gathered, unpacked, packed, reduced, stepped."""

from __future__ import annotations

from dataclasses import dataclass

from ..workloads.architecture import Architecture
from .degrees import Degrees
from .fabric import Fabric
from .stages import StageParts, layer_share
from .training import Training


@dataclass(frozen=True, slots=True)
class UnitSeconds:
    """Of units of a rank, by the number of their parameters on one tensor-parallel rank."""

    degrees: Degrees
    training: Training
    fabric: Fabric

    def link_s(self, size_bytes: int) -> float:
        """Gathering `size_bytes` over the ranks that share parameters, or reducing them."""
        degrees = self.degrees
        return self.fabric.gather_s(size_bytes, degrees.shards, degrees.shards * degrees.tensor)

    def unpack_s(self, gathered_bytes: int) -> float:
        """Copying gathered parameters out of their buffer."""
        return self.fabric.op_s(0, 0, 2 * gathered_bytes)

    def pack_s(self, count: int) -> float:
        """Copying 16-bit gradients into the buffer in which they are reduced."""
        return self.fabric.op_s(0, 0, (2 + self.training.reduced_bytes) * count)

    def sum_s(self, count: int) -> float:
        """Adding 16-bit gradients of a micro-batch to their sum in fp32, which FSDP2 keeps."""
        return self.fabric.op_s(0, 0, 10 * count)

    def stage_sums_s(self, model: Architecture, stage: StageParts) -> float:
        """Adding the gradients of the layers of a pipeline's stage to their sums, a micro-batch.

        Megatron's products do so themselves.
        """
        if self.training.state != "fsdp2" or self.training.micro_batches(self.degrees) == 1:
            return 0.0
        return sum(self.sum_s(layer_share(model, self.degrees, one)) for one in stage.layers)

    def reduce_s(self, count: int) -> float:
        """Reducing gradients of `count` parameters over the ranks that share them.

        In `bf16`, over all ranks that have them.
        """
        degrees = self.degrees
        if self.training.state != "bf16":
            return self.link_s(self.training.reduced_bytes * count)
        ranks = degrees.replicate * degrees.shards
        return self.fabric.all_reduce_s(2 * count, ranks, ranks * degrees.tensor)

    @property
    def averages(self) -> bool:
        """Whether reduced gradients are averaged over replicas by a message of their own."""
        return self.degrees.replicate > 1 and self.training.state != "bf16"

    @property
    def averages_apart(self) -> bool:
        """Whether that message goes over other links than those of the ranks that shard.

        Each group of ranks has a communicator of its own, so that only links keep one waiting for
        the other.
        """
        degrees = self.degrees
        return self.averages and degrees.shards * degrees.tensor <= self.fabric.per_node

    def average_s(self, shard: int) -> float:
        """Averaging the rank's part of reduced gradients, `shard` parameters, over replicas."""
        if not self.averages:
            return 0.0
        degrees = self.degrees
        span = degrees.replicate * degrees.shards * degrees.tensor
        size = self.training.reduced_bytes * shard
        return self.fabric.all_reduce_s(size, degrees.replicate, span)

    def optimizer_s(self, shard: int, whole: int, num_layers: int) -> float:
        """A step of the optimizer, with `shard` of `whole` parameters in `num_layers` layers."""
        state = self.training.state
        if state == "bf16":
            shard *= self.degrees.shards
        moved = (28 if self.training.fused_optimizer else 44) * shard
        if state == "bf16":
            moved //= 2
        link_s = 0.0
        if state == "megatron":
            # Gathering parameters overlaps with the next forward, except for the first bucket.
            link_s = self.link_s(2 * whole) / max(1, num_layers)
        return self.fabric.op_s(0, 0, moved) + link_s
