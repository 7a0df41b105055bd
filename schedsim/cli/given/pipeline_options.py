"""The options of a pipeline."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import click

from ..options.limits import budget_option
from .source import Source
from .workload import workload_options


@dataclass(frozen=True)
class PipelineOptions:
    """The options of a pipeline, as on the command line."""

    num_devices: int
    num_micro_batches: int
    order: str
    num_chunks: int
    recompute: str | None
    partition: str
    link: str | None
    link_latency_s: float
    collectives: str | None
    free_outputs: bool
    waits_for_gradient: bool
    replay: str | None


def pipeline_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a pipeline, of a workload and of a budget."""

    @functools.wraps(function)
    def command(source: Source, budget: int | str | None, **given: Any) -> Any:
        own = {item.name: given.pop(item.name) for item in fields(PipelineOptions)}
        return function(source, budget, PipelineOptions(**own), **given)

    options = [
        click.option("--stages", "num_devices", type=int, required=True, help="Devices in a line."),
        click.option(
            "--micro-batches", "num_micro_batches", type=int, required=True, help="In a step."
        ),
        click.option(
            "--schedule",
            "order",
            default="1f1b",
            show_default=True,
            help="gpipe, 1f1b, interleaved or zero-bubble.",
        ),
        click.option(
            "--chunks",
            "num_chunks",
            type=int,
            default=1,
            show_default=True,
            help="Stages a device, for --schedule interleaved.",
        ),
        click.option(
            "--recompute",
            help="auto (the default with --mem), none, layers (keeps their inputs) or stage.",
        ),
        click.option(
            "--partition",
            default="even",
            show_default=True,
            help="even, auto, or layers a stage: 12,12,11,13.",
        ),
        click.option(
            "--link", help="Between devices: pcie4, pcie5, nvlink-c2c or SIZE/s; without, no time."
        ),
        click.option("--link-latency", "link_latency_s", type=float, default=0.0, help="Seconds."),
        click.option(
            "--collectives",
            metavar="LINK",
            help="Tensor-parallel collectives take time on a link like this: 300GB/s.",
        ),
        click.option("--free-outputs", is_flag=True, help="Free a stage's output once it is sent."),
        click.option(
            "--late-recompute",
            "waits_for_gradient",
            is_flag=True,
            help="Recompute only once the gradient is there, not in the wait for it.",
        ),
        click.option("--replay", metavar="FILE", help="Replay a plan that -o wrote, and check it."),
        budget_option(required=False),
    ]
    wrapped: Callable[..., Any] = workload_options(command)
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped
