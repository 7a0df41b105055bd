"""The options of a link to host memory, and what a plan that copies says of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click

from ..dataflow.copies import copies_in
from ..errors import SchedsimError
from ..plans.offloading import Offloading
from ..simulation.simulator import Simulation
from ..units import format_bytes, format_bytes_short, format_seconds
from .inputs import SizeType, size_text

FLAGS = {"link": "--link", "host_bytes": "--host-mem", "host_latency_s": "--host-latency"}

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
# Copies named in a report, the largest first.
_NAMED = 6


class TimeType(click.ParamType):  # type: ignore[type-arg]
    """A time in seconds, written with its unit."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds."""
        if isinstance(value, float):
            return value
        where = f"{param.opts[0]} " if param else ""
        for unit, factor in _UNITS_S.items():
            number = value.removesuffix(unit)
            if number == value or (unit == "s" and number[-1:] in "num"):
                continue
            try:
                seconds = float(number) * factor
            except ValueError:
                break
            if seconds >= 0 and math.isfinite(seconds):
                return seconds
            break
        raise SchedsimError(
            f"{where}{value!r} is not a time", hint="a number and ns, us, ms or s: 10us"
        )


def link_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--link``, ``--host-mem`` and ``--host-latency``."""
    for option in (
        click.option(
            "--host-latency",
            "host_latency_s",
            type=TimeType(),
            metavar="TIME",
            help="Of every copy, besides its bytes: 10us.",
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
            help="Offload too, over pcie4, pcie5, nvlink-c2c or SIZE/s each way.",
        ),
    ):
        function = option(function)
    return function


def take_link(more: dict[str, Any]) -> dict[str, Any]:
    """Takes the options of the link out of `more`: those given, checked; empty without a link."""
    given = {name: more.pop(name) for name in FLAGS}
    found = {name: value for name, value in given.items() if value is not None}
    if found and "link" not in found:
        raise SchedsimError(
            f"{FLAGS[next(iter(found))]} is of a link, and there is none",
            hint="add --link pcie4, or SIZE/s",
        )
    if found:  # refused here, before anything is planned
        Offloading.over(
            found["link"],
            host_bytes=found.get("host_bytes"),
            latency_s=found.get("host_latency_s"),
        )
    return found


def link_words(options: dict[str, Any]) -> list[str]:
    """The arguments that give `options` again, for a shell."""
    words = []
    for name, flag in FLAGS.items():
        if name in options:
            value = options[name]
            if name == "host_bytes":
                value = size_text(value)
            if name == "host_latency_s":
                value = f"{value * 1e6:g}us"
            words += [flag, str(value)]
    return words


def copy_facts(simulation: Simulation, offloading: Offloading) -> list[tuple[str, str]]:
    """Lines of a report: what is offloaded, how busy the link is, and what is waited for."""
    out = [copy.tensor for copy in copies_in(simulation.run_names) if not copy.back]
    if not out:
        return [("offloaded", "nothing: the link does not help here")]
    sizes = _sizes(simulation)
    moved = {name: sizes[name] for name in out}
    largest = sorted(moved, key=lambda name: -moved[name])
    more = f", and {len(largest) - _NAMED} more" if len(largest) > _NAMED else ""
    busy, total = simulation.busy_s, simulation.makespan_s
    shares = [
        f"{name} {busy.get(name, 0.0) / total:.0%}".replace("%", " %") for name in ("d2h", "h2d")
    ]
    exposed = max(0.0, total - busy["compute"])
    host = format_bytes(simulation.peak_by_pool.get("host", 0))
    limit = offloading.host_bytes
    return [
        (
            "offloaded",
            f"{len(moved)} tensors, {format_bytes_short(sum(moved.values()))}: "
            f"{', '.join(largest[:_NAMED])}{more}",
        ),
        ("host memory", host if limit is None else f"{host} of {format_bytes(limit)}"),
        ("link busy", f"{', '.join(shares)} of the step, at {offloading.d2h} and {offloading.h2d}"),
        (
            "exposed",
            f"{format_seconds(exposed)} without an op running, "
            f"{exposed / total:.2%} of the step".replace("%", " %"),
        ),
    ]


def _sizes(simulation: Simulation) -> dict[str, int]:
    arrays = simulation._graph.arrays
    return dict(zip(arrays.tensor_names, arrays.tensor_bytes.tolist(), strict=True))
