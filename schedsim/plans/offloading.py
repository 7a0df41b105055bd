"""Offloading: the two directions of a link, and the host memory that a plan may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..dataflow.copies import HOST_LEVEL, copies_in
from ..dataflow.streams import DEVICE, HOST
from ..errors import SchedsimError
from ..simulation.schedule import Schedule
from ..units import parse_bytes
from .links import Link, parse_link, with_copies

if TYPE_CHECKING:
    from ..dataflow.chain import Chain
    from ..dataflow.graph import Graph

LinkLike = Link | str | tuple[Link | str, Link | str]
"""A link, given as a `Link`, a name or a bandwidth; or a pair of these, to the host and back."""


@dataclass(frozen=True, slots=True)
class Offloading:
    """A link to host memory, and how much host memory there is.

    Parameters
    ----------
    d2h, h2d
        The directions to the host and back to the device.
    host_bytes
        Pinned host memory allowed; ``None`` for no limit.

    Examples
    --------
    >>> Offloading.over("25GB/s", host_bytes="64GiB").host_bytes
    68719476736
    """

    d2h: Link
    h2d: Link
    host_bytes: int | None = None

    @classmethod
    def over(
        cls,
        link: LinkLike,
        *,
        host_bytes: int | str | None = None,
        latency_s: float | None = None,
    ) -> Offloading:
        """Offloading over ``"pcie4"``, ``"25GB/s"``, a `Link`, or a pair of these.

        Parameters
        ----------
        latency_s
            Latency of links that are given as a text; 0 by default.

        Raises
        ------
        SchedsimError
            A text is no link, or `host_bytes` no size.
        """
        both = link if isinstance(link, tuple | list) else (link, link)
        if len(both) != 2:
            raise SchedsimError(
                f"{len(both)} links are given", hint="one, or a pair: to the host and back"
            )
        out, back = (
            one if isinstance(one, Link) else parse_link(one, latency_s or 0.0) for one in both
        )
        if isinstance(host_bytes, str):
            host_bytes = parse_bytes(host_bytes)
        if host_bytes is not None and (
            isinstance(host_bytes, bool) or not isinstance(host_bytes, int) or host_bytes < 0
        ):
            raise SchedsimError(
                f"host_bytes {host_bytes!r} is not a number of bytes",
                hint="an int of bytes, a text like '64GiB', or None for no limit",
            )
        return cls(out, back, host_bytes)

    def capacities(self, budget_bytes: int) -> dict[str, int]:
        """Pool -> bytes, as the engine takes them."""
        limits = {DEVICE: budget_bytes}
        return limits if self.host_bytes is None else {**limits, HOST: self.host_bytes}

    def graph(self, workload: Chain | Graph, schedule: Schedule) -> Graph:
        """The graph of `workload` with the copies that `schedule` runs."""
        run = copies_in(schedule.op_names, beside=workload.op_names)
        copied = [copy.tensor for copy in run if copy.level == HOST_LEVEL]
        if not copied:
            return workload.graph
        return with_copies(workload, d2h=self.d2h, h2d=self.h2d, tensors=dict.fromkeys(copied))
