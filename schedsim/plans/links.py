"""Links between memories, and the ops that copy tensors over them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..checks.value_checks import MAX_SECONDS, check_seconds, shown
from ..dataflow.copies import Copy
from ..dataflow.graph import Graph
from ..dataflow.streams import DEVICE
from ..errors import InvalidWorkloadError, SchedsimError
from ..units import UnitError, format_bytes_short, format_seconds, parse_bytes

if TYPE_CHECKING:
    from ..dataflow.chain import Chain


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a link, which says how long a copy takes.

    Parameters
    ----------
    bytes_per_s
        Bandwidth, more than zero.
    latency_s
        Seconds that every copy takes in addition, however small it is.

    Examples
    --------
    >>> Link(25e9, 1e-5).time_s(250_000_000)
    0.01001
    """

    bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        rate = self.bytes_per_s
        if isinstance(rate, bool) or not isinstance(rate, int | float):
            raise InvalidWorkloadError(f"{shown(rate)} is not a number", path="bytes_per_s")
        if not (rate > 0 and math.isfinite(rate)):
            raise InvalidWorkloadError(
                f"{shown(rate)} is not a bandwidth",
                path="bytes_per_s",
                hint="bytes per second, more than zero",
            )
        check_seconds(self.latency_s, "latency_s")

    def time_s(self, size_bytes: int) -> float:
        """Seconds that a copy of `size_bytes` takes: latency, and the bytes at the bandwidth."""
        return min(self.latency_s + size_bytes / self.bytes_per_s, MAX_SECONDS)

    def __str__(self) -> str:
        text = f"{format_bytes_short(round(self.bytes_per_s))}/s"
        return f"{text} + {format_seconds(self.latency_s)}" if self.latency_s else text


def _pcie(transfers_per_s: float) -> Link:
    """Payload bandwidth of one direction of sixteen lanes.

    128 of 130 bits on the wire are data. A packet of the largest payload that hosts commonly set,
    256 bytes, carries 24 bytes of framing, header and checksum.
    """
    return Link(16 * transfers_per_s / 8 * (128 / 130) * (256 / 280))


LINKS = {
    "pcie4": _pcie(16e9),
    "pcie5": _pcie(32e9),
    "nvlink-c2c": Link(450e9),
}
"""Published bandwidths of links in one direction, an upper limit; measure your own link.

``pcie4``, ``pcie5``: sixteen lanes of 16 and 32 GT/s (PCI Express Base Specification 4.0, 2017, and
5.0, 2019), 28.8 and 57.6 GB/s after encoding and packet headers. ``nvlink-c2c``: 900 GB/s both
directions together (NVIDIA Grace Hopper Superchip Architecture, 2022), half of it each way."""


def parse_link(text: str, latency_s: float = 0.0) -> Link:
    """The link that `text` names: a preset, or a bandwidth as a size per second.

    Raises
    ------
    UnitError
        The text is neither a preset nor a bandwidth.

    Examples
    --------
    >>> parse_link("25GB/s", 1e-5)
    Link(bytes_per_s=25000000000, latency_s=1e-05)
    >>> print(parse_link("pcie4"))
    28.81 GB/s
    """
    if not isinstance(text, str):
        raise UnitError(f"{shown(text)} is not a link", hint=f"one of {', '.join(LINKS)}")
    if text in LINKS:
        return replace(LINKS[text], latency_s=latency_s)
    known = f"one of {', '.join(LINKS)}, or a bandwidth like 25GB/s"
    if not text.endswith("/s"):
        raise UnitError(f"{shown(text)} is not a link", hint=known)
    try:
        rate = parse_bytes(text.removesuffix("/s"))
    except UnitError as error:
        raise UnitError(f"link {shown(text)}: {error.message}", hint=error.hint or known) from None
    if rate == 0:
        raise UnitError(f"{shown(text)} carries nothing", hint=known)
    return Link(rate, latency_s)


def with_copies(
    workload: Chain | Graph,
    *,
    d2h: Link,
    h2d: Link,
    tensors: Iterable[str] | None = None,
) -> Graph:
    """The graph of `workload` with copies to host memory and back, which a schedule may run.

    Each tensor gets two ops that a schedule may leave out, one to host memory and one back (see
    `schedsim.dataflow.copies`). The copies come after the ops of the workload, so the indices of
    the workload's ops and tensors stay the same.

    Parameters
    ----------
    workload
        A chain (lowered to its graph) or a graph.
    d2h, h2d
        The two directions of the link.
    tensors
        Names of the tensors to copy. By default all activations: inputs of the graph and outputs of
        forward ops on the device, of one byte or more.

    Raises
    ------
    InvalidWorkloadError
        The graph has no such tensor, or has a copy of it already.
    SchedsimError
        A tensor is not in the memory of the ``device``.

    Notes
    -----
    O(ops + tensors).

    Examples
    --------
    >>> import schedsim
    >>> chain = schedsim.Chain.from_arrays("two", 4, forward_s=[1, 1], backward_s=[2, 2],
    ...                                    output_bytes=[4, 4], saved_bytes=[10, 10])
    >>> graph = with_copies(chain, d2h=Link(4), h2d=Link(4), tensors=["a1"])
    >>> names = ["F0", Copy("a1").name, *"F1 loss B1 F0 B0".split()]
    >>> schedule = schedsim.Schedule.from_names(names)
    >>> len(graph.ops), schedsim.simulate(graph, schedule).peak_by_pool
    (7, {'device': 26, 'host': 4})
    """
    graph = workload.graph
    sizes = dict(graph.inputs)
    chosen = [name for name, size in sizes.items() if size and graph.pool_of(name) == DEVICE]
    for op in graph.ops:
        for name, size in op.writes.items():
            if op.phase == "forward" and size and op.pool_of(name) == DEVICE and name not in sizes:
                chosen.append(name)
            sizes[name] = size
    copies = []
    for name in chosen if tensors is None else dict.fromkeys(tensors):
        if name not in sizes:
            raise InvalidWorkloadError(f"unknown tensor {shown(name)}", path="tensors")
        if graph.pool_of(name) != DEVICE:
            raise SchedsimError(
                f"{name} lives in pool {graph.pool_of(name)!r}, not on the device",
                hint="only tensors on the device can be copied to the host",
            )
        size = sizes[name]
        copies.append(Copy(name).op(size, d2h.time_s(size)))
        copies.append(Copy(name, back=True).op(size, h2d.time_s(size)))
    return replace(graph, ops=(*graph.ops, *copies))
