"""The options of a pipeline."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import click

from ...errors import SchedsimError
from ..options.limits import budget_option
from .workload_options import workload_options
from .workload_source import Source


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


DEFAULTS: dict[str, Any] = {
    "order": "1f1b",
    "num_chunks": 1,
    "partition": "even",
    "link_latency_s": 0.0,
    "free_outputs": False,
    "waits_for_gradient": False,
}
"""Defaults of options that are not given."""

FLAGS = {
    "num_devices": "--stages",
    "num_micro_batches": "--micro-batches",
    "order": "--schedule",
    "num_chunks": "--chunks",
    "recompute": "--recompute",
    "partition": "--partition",
    "link": "--link",
    "link_latency_s": "--link-latency",
    "collectives": "--collectives",
    "free_outputs": "--free-outputs",
    "waits_for_gradient": "--late-recompute",
}
"""Field of `PipelineOptions` -> its flag."""


@dataclass(frozen=True)
class PipelineRequest:
    """The command line of a pipeline.

    Attributes
    ----------
    given
        Field of `PipelineOptions` -> value, for the options that were given.
    replay
        The file of a plan to simulate again; ``None`` to make a plan.
    """

    source: Source
    budget: int | str | None
    given: Mapping[str, Any]
    replay: str | None

    def options(self) -> PipelineOptions:
        """All options of a pipeline that is planned, defaults included.

        Raises
        ------
        SchedsimError
            An option without a default is missing.
        """
        for name in ("num_devices", "num_micro_batches"):
            if name not in self.given:
                raise SchedsimError(
                    f"{FLAGS[name]} is missing", hint=f"add {FLAGS[name]} 8, or --replay plan.json"
                )
        return with_defaults(self.given)


def with_defaults(given: Mapping[str, Any]) -> PipelineOptions:
    """The options `given`, with defaults for all others."""
    return PipelineOptions(**{**dict.fromkeys(FLAGS), **DEFAULTS, **given})


def pipeline_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a pipeline, its workload and its budget."""

    @functools.wraps(function)
    def command(source: Source, budget: int | str | None, **more: Any) -> Any:
        own = {item.name: more.pop(item.name) for item in fields(PipelineOptions)}
        given = {k: v for k, v in own.items() if v is not None and v is not False}
        return function(PipelineRequest(source, budget, given, more.pop("replay")), **more)

    options = [
        click.option(
            "--stages", "num_devices", type=int, help="Number of devices in the pipeline."
        ),
        click.option(
            "--micro-batches",
            "num_micro_batches",
            type=int,
            help="Number of micro-batches in a step.",
        ),
        click.option(
            "--schedule",
            "order",
            help="Order of micro-batches: gpipe, 1f1b (default), interleaved, zero-bubble.",
        ),
        click.option(
            "--chunks",
            "num_chunks",
            type=int,
            help="Stages per device [1], for --schedule interleaved.",
        ),
        click.option(
            "--recompute",
            help="auto (default with --mem), none, layers (keep their inputs) or stage.",
        ),
        click.option(
            "--partition",
            help="even (default), auto, or layers per stage: 12,12,11,13.",
        ),
        click.option(
            "--link",
            help="Link between devices: pcie4, pcie5, nvlink-c2c or SIZE/s; by default no time.",
        ),
        click.option(
            "--link-latency",
            "link_latency_s",
            type=float,
            help="Seconds that each message takes in addition.",
        ),
        click.option(
            "--collectives",
            metavar="LINK",
            help="Link of tensor-parallel collectives, which then take time: 300GB/s.",
        ),
        click.option("--free-outputs", is_flag=True, help="Free a stage's output once it is sent."),
        click.option(
            "--late-recompute",
            "waits_for_gradient",
            is_flag=True,
            help="Recompute only after the gradient has arrived, not while waiting for it.",
        ),
        click.option("--replay", metavar="FILE", help="Replay and check a plan that -o wrote."),
        budget_option(required=False),
    ]
    wrapped: Callable[..., Any] = workload_options(command)
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped
