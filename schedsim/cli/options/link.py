"""The options of a link to host memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from ...errors import SchedsimError
from ...plans.offloading import Offloading
from .typed_sizes import SizeType, TimeType, size_text, time_text

FLAGS = {"link": "--link", "host_bytes": "--host-mem", "host_latency_s": "--host-latency"}


def link_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--link``, ``--host-mem`` and ``--host-latency``."""
    for option in (
        click.option(
            "--host-latency",
            "host_latency_s",
            type=TimeType(),
            metavar="TIME",
            help="Time that every copy takes in addition: 10us.",
        ),
        click.option(
            "--host-mem",
            "host_bytes",
            type=SizeType(),
            metavar="SIZE",
            help="Pinned host memory to offload to; no limit by default.",
        ),
        click.option(
            "--link",
            metavar="LINK",
            help="Allow offloading over this link: pcie4, pcie5, nvlink-c2c or SIZE/s each way.",
        ),
    ):
        function = option(function)
    return function


def take_link(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the link in `given`, checked; empty without a link."""
    found = {name: given[name] for name in FLAGS if given[name] is not None}
    if found and "link" not in found:
        raise SchedsimError(
            f"{FLAGS[next(iter(found))]} needs a link",
            hint="add --link pcie4, or SIZE/s",
        )
    if found:  # refuse bad values before anything is planned
        Offloading.over(
            found["link"],
            host_bytes=found.get("host_bytes"),
            latency_s=found.get("host_latency_s"),
        )
    return found


def link_words(options: Mapping[str, Any]) -> list[str]:
    """The shell arguments that describe `options`."""
    words = []
    for name, flag in FLAGS.items():
        if name in options:
            value = options[name]
            if name == "host_bytes":
                value = size_text(value)
            if name == "host_latency_s":
                value = time_text(value)
            words += [flag, str(value)]
    return words
