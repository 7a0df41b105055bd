"""The options of ``schedsim cluster`` and ``schedsim plot cluster``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import click

# (flag, field of Degrees or Training, type, help)
_OPTIONS: tuple[tuple[str, str, Any, str], ...] = (
    ("--fsdp", "fsdp", int, "Ranks that shard parameters; by default what is left."),
    ("--replicate", "replicate", int, "Copies of such a group (HSDP)."),
    ("--tensor", "tensor", int, "Tensor-parallel ranks, sequence parallelism included."),
    ("--pipeline", "pipeline", int, "Pipeline stages' ranks."),
    ("--context", "context", int, "Ranks that split the sequence."),
    ("--expert", "expert", int, "Ranks that split routed experts."),
    ("--seq", "seq", int, "Tokens of a sequence (8192)."),
    ("--batch", "batch", int, "Sequences of each data-parallel rank in a step (1)."),
    ("--micro-batches", "num_micro_batches", int, "Parts of the batch; one a stage by default."),
    ("--schedule", "schedule", str, "gpipe, 1f1b (default), interleaved or zero-bubble."),
    ("--chunks", "num_chunks", int, "Stages on each device, for the interleaved order."),
    (
        "--recompute",
        "recompute",
        str,
        "none, core, selective, full, keep=OP+OP, or counts: full:4,none:12; fit: what fits --mem.",
    ),
    ("--zero", "zero_stage", int, "3 gathers parameters twice a step, 2 once."),
    ("--loss-chunks", "loss_chunks", int, "Parts in which the loss is computed."),
    ("--state", "state", str, "fsdp2 (default), megatron or bf16."),
)
_SWITCHES: tuple[tuple[str, str, str], ...] = (
    ("--compile", "compiled", "Layers are compiled."),
    ("--float8", "float8", "Products of the layers in 8 bits."),
    ("--compile-loss", "compiled_loss", "The loss is compiled."),
    ("--separate-head", "separate_head", "Embedding and head are gathered apart."),
    ("--fused-optimizer", "fused_optimizer", "The optimizer makes no temporary copies."),
    ("--eager-attention", "eager_attention", "Attention writes and keeps its weights."),
    ("--regather", "regather", "Gathered inputs are not kept (Megatron)."),
    ("--optimizer-in-backward", "optimizer_in_backward", "Each gradient is used at once."),
    ("--expandable", "expandable", "The allocator's segments grow."),
)


FIT = "fit"
"""``--recompute fit``: chosen for every layer, to fit."""


@dataclass(frozen=True)
class ClusterRequest:
    """What was asked of a cluster."""

    preset: str
    devices: int | None
    device: str
    efficiency: float | None
    options: Mapping[str, Any] = field(default_factory=dict)

    def words(self) -> dict[str, Any]:
        """Arguments of `schedsim.cluster` besides the preset."""
        return {
            "devices": self.devices,
            "device": self.device,
            "efficiency": self.efficiency,
            **self.options,
        }


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options; the command gets one `ClusterRequest`, ``request``."""

    @wraps(function)
    def wrapped(
        preset: str,
        devices: int | None,
        device: str,
        efficiency: float | None,
        **others: Any,
    ) -> Any:
        known = {name for _, name, _, _ in _OPTIONS} | {name for _, name, _ in _SWITCHES}
        given = {name: others.pop(name) for name in known}
        options = {name: value for name, value in given.items() if value not in (None, False)}
        request = ClusterRequest(preset, devices, device, efficiency, options)
        return function(request=request, **others)

    made: Callable[..., Any] = wrapped
    for flag, name, text in reversed(_SWITCHES):
        made = click.option(flag, name, is_flag=True, help=text)(made)
    for flag, name, kind, text in reversed(_OPTIONS):
        made = click.option(flag, name, type=kind, help=text)(made)
    made = click.option(
        "--efficiency", type=float, help="Share of the device's peaks reached; calibrated."
    )(made)
    made = click.option(
        "--device", default="h100-80gb", help="h100-80gb (default), h100-96gb, a100-80gb, ..."
    )(made)
    made = click.option("--devices", type=int, help="How many devices.")(made)
    return click.option(
        "--preset", required=True, help="Model: llama3-8b, llama3-405b, deepseek-v3, ..."
    )(made)
