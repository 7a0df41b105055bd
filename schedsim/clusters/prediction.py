"""The prediction of a step: memory of every rank, and time."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from ..errors import SchedsimError
from ..units import format_bytes, format_seconds
from ..workloads.architecture import Architecture
from .degrees import Degrees
from .expert_ops import most_uneven
from .fabric import Fabric, flash_share
from .layer_recompute import check_kept_names
from .rank_memory import RankMemory, rank_memory
from .rank_time import StepTime, step_time
from .stages import check_policies
from .training import Training


@dataclass(frozen=True)
class ClusterPrediction:
    """The simulated memory and time of a step on a cluster.

    Attributes
    ----------
    model, degrees, training, fabric
        The arguments of the prediction.
    ranks
        Memory of one rank of each pipeline stage, in order; all ranks of a stage are alike.
    time
        Seconds of the step, and where they go.

    Examples
    --------
    >>> import schedsim
    >>> step = schedsim.cluster("llama3-8b", devices=8, fsdp=8, batch=2, recompute="selective")
    >>> f"{step.reserved_bytes / 2**30:.1f} GiB"  # torchtitan: 82.4
    '82.1 GiB'
    """

    model: Architecture
    degrees: Degrees
    training: Training
    fabric: Fabric
    ranks: tuple[RankMemory, ...]
    time: StepTime

    @cached_property
    def fullest(self) -> RankMemory:
        """The rank with the most reserved bytes."""
        return max(self.ranks, key=lambda rank: rank.reserved_bytes)

    @property
    def peak_bytes(self) -> int:
        """Largest bytes in use on any rank."""
        return max(rank.peak_bytes for rank in self.ranks)

    @property
    def reserved_bytes(self) -> int:
        """Largest bytes that the allocator of any rank takes."""
        return self.fullest.reserved_bytes

    @property
    def step_s(self) -> float:
        """Seconds of the step."""
        return self.time.step_s

    @property
    def tokens(self) -> int:
        """Tokens of the step, on all devices together."""
        return self.training.batch * self.training.seq * self.degrees.data

    @property
    def tokens_per_device_s(self) -> float:
        """Tokens of the step per second, divided by the number of devices."""
        return self.tokens / self.step_s / self.degrees.num_devices

    @property
    def mfu(self) -> float:
        """Share of the devices' peak flops that `Architecture.model_flops` uses."""
        flops = self.model.model_flops(self.training.seq) * self.tokens_per_device_s
        return flops / self.fabric.device.flops_per_s["bf16"]

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for what is assumed, and for each setting that this step does not follow."""
        return (*self.model.notes, *self._assumed, *self._not_followed)

    @property
    def _assumed(self) -> tuple[str, ...]:
        fabric = self.fabric
        if not fabric.is_assumed:
            return ()
        near, far = (rate / 1e9 for rate in (fabric.near_bytes_per_s, fabric.far_bytes_per_s))
        return (
            f"the links of {fabric.device.name} are not known here: as of an H100, {near:.0f} GB/s "
            f"inside nodes of {fabric.per_node} and {far:.0f} GB/s between them",
        )

    @property
    def _not_followed(self) -> tuple[str, ...]:
        shards = self.degrees.shards
        if self.training.state != "bf16" or shards == 1:
            return self._not_followed_by_experts
        line = f"--state bf16 shards nothing: each of {shards} ranks holds all that it updates"
        return (line, *self._not_followed_by_experts)

    @property
    def _not_followed_by_experts(self) -> tuple[str, ...]:
        experts, degrees, training = self.model.experts, self.degrees, self.training
        if experts is None:
            return ()
        most, alone = most_uneven(experts, degrees.expert), degrees.expert == 1
        single = training.micro_batches(degrees) == 1
        held = "each rank holds all experts, as --expert is 1"
        return tuple(
            line
            for given, line in (
                (training.dispatcher != "alltoall" and alone, f"--dispatcher does nothing: {held}"),
                (training.hidden_exchange and alone, f"--hidden-exchange does nothing: {held}"),
                (
                    training.hidden_exchange and single and not alone,
                    "--hidden-exchange does nothing: there is one micro-batch, and nothing beside",
                ),
                (training.uneven > 1 and alone, f"--uneven does nothing: {held}"),
                (
                    training.uneven > most and not alone,
                    f"--uneven {training.uneven:g} is taken as {most:g}: all tokens go to one rank",
                ),
            )
            if given
        )

    def document(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "schema": "schedsim.cluster/1",
            "model": self.model.name,
            "num_parameters": self.model.num_parameters,
            "device": self.fabric.device.name,
            "efficiency": self.fabric.efficiency,
            "attention_share": self.fabric.attention_share,
            "degrees": asdict(self.degrees),
            "training": asdict(self.training),
            "peak_bytes": self.peak_bytes,
            "reserved_bytes": self.reserved_bytes,
            "step_s": self.step_s,
            "tokens_per_device_s": self.tokens_per_device_s,
            "mfu": self.mfu,
            "bubble": self.time.bubble,
            "notes": list(self.notes),
            "ranks": [
                {
                    "pipeline_rank": rank.rank,
                    "peak_bytes": rank.peak_bytes,
                    "peak_at": rank.peak_op,
                    "reserved_bytes": rank.reserved_bytes,
                    "host_bytes": rank.host_bytes,
                    "kinds": rank.kinds,
                }
                for rank in self.ranks
            ],
        }

    def __str__(self) -> str:
        return (
            f"{self.model.name} on {self.degrees.num_devices} devices: "
            f"{format_bytes(self.reserved_bytes)} reserved, {format_seconds(self.step_s)} a step, "
            f"{self.tokens_per_device_s:,.0f} tokens/s a device"
        )


def check_device(training: Training, fabric: Fabric) -> None:
    """Raise `SchedsimError`, naming the option, where a device cannot run the settings."""
    if training.float8 and not fabric.float8_gain:
        raise SchedsimError(
            f"--float8: no rate of {fabric.device.name} in 8 bits is known here",
            hint="leave it out, or take an h100-80gb",
        )
    libraries = training.libraries
    if training.eager_attention and fabric.attention_share != flash_share(fabric.device.name):
        raise SchedsimError(
            "--flash does nothing with --eager-attention", hint="leave one of them out"
        )
    own = libraries.flex_attention or libraries.efficient_attention
    if own and fabric.attention_share != flash_share(fabric.device.name):
        raise SchedsimError(
            "--flash does nothing where the libraries have an attention of PyTorch's own",
            hint="leave --flash out",
        )


def predict(
    model: Architecture, degrees: Degrees, training: Training, fabric: Fabric
) -> ClusterPrediction:
    """Memory of every rank and time of a step.

    Raises
    ------
    SchedsimError
        Degrees or settings do not go together; the message names the option.

    Notes
    -----
    One simulation for each pipeline stage, however many ranks there are: 512 ranks take seconds.
    """
    degrees.check(model)
    training.check(model, degrees)
    check_device(training, fabric)
    check_policies(model, degrees, training)
    check_kept_names(model, degrees, training, fabric)
    ranks = tuple(
        rank_memory(model, degrees, training, fabric, rank) for rank in range(degrees.pipeline)
    )
    return ClusterPrediction(
        model, degrees, training, fabric, ranks, step_time(model, degrees, training, fabric)
    )
