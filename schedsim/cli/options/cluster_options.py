"""The options of ``schedsim cluster`` and ``schedsim plot cluster``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import click

from ...checks.cluster_flags import flag_of
from .files import check_outputs

# (field of Degrees or Training, type, help)
_OPTIONS: tuple[tuple[str, Any, str], ...] = (
    ("fsdp", int, "Ranks that shard parameters (FSDP); by default all that remain."),
    ("replicate", int, "Replicas of each group of such ranks (HSDP)."),
    ("tensor", int, "Tensor-parallel ranks, with sequence parallelism."),
    ("pipeline", int, "Ranks of the pipeline."),
    ("context", int, "Ranks that split the sequence."),
    ("expert", int, "Ranks that split routed experts."),
    ("seq", int, "Tokens per sequence [8192]."),
    ("batch", int, "Sequences per data-parallel rank in a step [1]."),
    (
        "num_micro_batches",
        int,
        "Micro-batches per step; by default one per stage.",
    ),
    (
        "schedule",
        str,
        "Order of micro-batches: gpipe, 1f1b (default), interleaved or zero-bubble.",
    ),
    ("num_chunks", int, "Stages on each device, for the interleaved order."),
    (
        "recompute",
        str,
        "none, core, selective, full, keep=OP+OP; by layers: full:4,none:12; fit: what fits --mem.",
    ),
    ("zero_stage", int, "ZeRO stage: 3 gathers parameters twice a step, 2 once."),
    ("loss_chunks", int, "Parts in which the loss is computed."),
    ("torch", str, "Version of PyTorch that the ranks run, from 2.3 on [2.15]."),
    (
        "dispatcher",
        str,
        "How tokens get to experts: alltoall (default), or deepep (once to each node).",
    ),
    ("uneven", float, "Tokens of the fullest expert-parallel rank over the mean [1]."),
    ("state", str, "Formats of the model state: fsdp2 (default), megatron or bf16."),
)
_SWITCHES: tuple[tuple[str, str], ...] = (
    ("compiled", "Layers are compiled."),
    ("float8", "Matrix products of the layers run in 8 bits."),
    ("compiled_loss", "Compile the loss."),
    ("whole_experts", "Keep experts whole on tensor-parallel ranks (ETP 1)."),
    (
        "hidden_exchange",
        "Exchange tokens of experts beside the computation of another micro-batch.",
    ),
    ("chunked_head", "Compute head and loss chunk by chunk."),
    ("reduce_bf16", "Reduce gradients in 16 bits (reduce_dtype of FSDP)."),
    ("separate_head", "Gather embedding and head separately."),
    ("fused_optimizer", "Use an optimizer without temporary copies."),
    (
        "eager_attention",
        "Use attention that writes and keeps its weight matrix.",
    ),
    (
        "regather",
        "Run Megatron's layers: inputs gathered again in the backward, its fused kernels.",
    ),
    (
        "whole_sequence",
        "Keep the whole sequence on tensor-parallel ranks (no sequence parallelism).",
    ),
    (
        "overlap_tensor",
        "Send parts of sequences beside products (Megatron's --tp-comm-overlap).",
    ),
    (
        "optimizer_in_backward",
        "Apply each gradient in the backward, and free it at once.",
    ),
    ("expandable", "Let the allocator's segments grow (expandable_segments)."),
)


FIT = "fit"
"""``--recompute fit``: chosen for every layer, to fit."""


@dataclass(frozen=True)
class ClusterRequest:
    """The command line of ``schedsim cluster``."""

    preset: str
    devices: int | None
    device: str
    efficiency: float | None
    flash: int
    network: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def words(self) -> dict[str, Any]:
        """Arguments of `schedsim.cluster` besides the preset."""
        return {
            "devices": self.devices,
            "device": self.device,
            "efficiency": self.efficiency,
            "flash": self.flash,
            "network": self.network,
            **self.options,
        }


def option_words(options: Mapping[str, Any]) -> list[str]:
    """The words of a command line that give `options`, by their names in Python.

    Examples
    --------
    >>> option_words({"compiled": True, "tensor": 8})
    ['--tensor', '8', '--compile']
    """
    words: list[str] = []
    for name, _, _ in _OPTIONS:
        words += [flag_of(name), str(options[name])] if name in options else []
    return words + [flag_of(name) for name, _ in _SWITCHES if options.get(name)]


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command gets one `ClusterRequest`, ``request``."""

    @wraps(function)
    def wrapped(
        preset: str,
        devices: int | None,
        device: str,
        efficiency: float | None,
        flash: int,
        network: float | None,
        **others: Any,
    ) -> Any:
        read = [preset if preset.startswith("hf:") else None]
        read.append(device if device.endswith(".json") else None)
        check_outputs({"-o": others.get("output")}, read)
        known = {name for name, _, _ in _OPTIONS} | {name for name, _ in _SWITCHES}
        given = {name: others.pop(name) for name in known}
        # By identity: a number of 0 is refused where it is read, not left out as a switch is.
        options = {
            k: value for k, value in given.items() if value is not None and value is not False
        }
        request = ClusterRequest(preset, devices, device, efficiency, flash, network, options)
        return function(request=request, **others)

    made: Callable[..., Any] = wrapped
    for name, text in reversed(_SWITCHES):
        made = click.option(flag_of(name), name, is_flag=True, help=text)(made)
    for name, kind, text in reversed(_OPTIONS):
        made = click.option(flag_of(name), name, type=kind, help=text)(made)
    made = click.option(
        "--network",
        type=float,
        help="GB/s that a device sends to other nodes [50; 25 of an A100].",
    )(made)
    made = click.option(
        "--flash", type=int, default=2, help="Which FlashAttention runs: 1, 2 (default) or 3."
    )(made)
    made = click.option(
        "--efficiency",
        type=float,
        help="Share of the arithmetic peak that ops reach; calibrated by default.",
    )(made)
    made = click.option(
        "--device", default="h100-80gb", help="h100-80gb (default), h100-96gb, a100-80gb, ..."
    )(made)
    made = click.option("--devices", type=int, help="How many devices.")(made)
    return click.option(
        "--preset", required=True, help="Model: llama3-8b, deepseek-v3, ...; hf:NAME or hf:PATH."
    )(made)
