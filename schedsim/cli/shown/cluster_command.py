"""A predicted step as a command line that predicts it again."""

from __future__ import annotations

import shlex
from dataclasses import fields
from typing import TYPE_CHECKING

from ..options.cluster_options import ClusterRequest, option_words

if TYPE_CHECKING:
    from ...clusters import ClusterPrediction

_CHOSEN = ("batch", "num_micro_batches", "schedule", "num_chunks", "recompute", "zero_stage")
"""Settings that a search chooses, in the order in which they are written."""


def command_of(
    request: ClusterRequest, found: ClusterPrediction, budget: int, host_bytes: int | None
) -> str:
    """The command line that predicts the step that a search has `found` for `request`."""
    degrees, training = found.degrees, found.training
    values = dict(request.options)
    for one in fields(degrees):
        value = getattr(degrees, one.name)
        if value == one.default or one.name == "fsdp":  # which takes the devices that are left
            values.pop(one.name, None)
        else:
            values[one.name] = value
    defaults = {one.name: one.default for one in fields(training)}
    for name in _CHOSEN:
        value = getattr(training, name)
        if name == "num_micro_batches":
            alike = value == (degrees.pipeline if degrees.pipeline > 1 else 1)
        else:
            alike = value == defaults[name]
        if not alike:
            values[name] = value
    words = ["schedsim", "cluster", "--preset", request.preset]
    words += ["--devices", str(degrees.num_devices)]
    for flag, given, default in (
        ("--device", request.device, "h100-80gb"),
        ("--efficiency", request.efficiency, None),
        ("--flash", request.flash, 2),
        ("--network", request.network, None),
    ):
        words += [] if given == default else [flag, str(given)]
    words += option_words(values)
    words += ["--mem", str(budget)]
    words += [] if host_bytes is None else ["--host-mem", str(host_bytes)]
    return shlex.join(words)
