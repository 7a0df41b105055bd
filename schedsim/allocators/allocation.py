"""The result of an allocator for a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..units import format_bytes
from .requests import Requests


@dataclass(frozen=True)
class Allocation:
    """Memory taken from the device while a schedule runs, once or several times.

    Each series has an entry per event of the simulation (the start or the end of a run), with the
    state after the event; events of several steps follow one another. If the device is too small,
    the series end before the event that fails.

    Attributes
    ----------
    allocator : str
        ``"cuda-caching"``, ``"best-fit"`` or ``"first-fit"``.
    options : mapping
        Options of the allocator.
    reserved_bytes : (num_events,) int64
        Bytes taken from the device.
    allocated_bytes : (num_events,) int64
        Bytes in blocks that are in use.
    requested_bytes : (num_events,) int64
        Bytes as requested, which the simulator counts.
    stuck_bytes : (num_events,) int64
        Free bytes between blocks in use: they cannot be returned to the device, and only a request
        that fits between the blocks can use them.
    peak_reserved_bytes, peak_allocated_bytes : int
    bound_bytes : int
        The most bytes requested at once: no allocator takes less.
    capacity_bytes : int or None
        Size of the device; ``None`` for one without limit.
    fits : bool
        Whether every request was served.
    failed_event, failed_item : int or None, str or None
        The request that was not served: its event (-1: before the first), and its name.
    num_emptied : int
        How often the device was full and all cached segments were returned to it.
    num_segments : int
        The most segments at once.
    requests : Requests
    addresses : (requests served,) int64
        Start address of the block of each request or release.
    """

    allocator: str
    options: Mapping[str, Any]
    reserved_bytes: NDArray[np.int64]
    allocated_bytes: NDArray[np.int64]
    requested_bytes: NDArray[np.int64]
    stuck_bytes: NDArray[np.int64]
    peak_reserved_bytes: int
    peak_allocated_bytes: int
    bound_bytes: int
    capacity_bytes: int | None
    fits: bool
    failed_event: int | None
    failed_item: str | None
    num_emptied: int
    num_segments: int
    requests: Requests
    addresses: NDArray[np.int64]

    @property
    def fragmentation(self) -> NDArray[np.float64]:
        """Share of the reserved bytes that no block in use covers, after each event."""
        reserved = np.maximum(self.reserved_bytes, 1)
        return (self.reserved_bytes - self.allocated_bytes) / reserved

    @property
    def fragmentation_at_peak(self) -> float:
        """`fragmentation` at the peak of reserved bytes; among equals, where most is in use."""
        if not self.reserved_bytes.size:
            return 0.0
        full = self.reserved_bytes == self.reserved_bytes.max()
        return float(self.fragmentation[full].min())

    @property
    def extra(self) -> float:
        """Peak of reserved bytes / peak of requested bytes - 1."""
        return self.peak_reserved_bytes / self.bound_bytes - 1.0 if self.bound_bytes else 0.0

    def __str__(self) -> str:
        lines = [
            f"{self.allocator}: {format_bytes(self.peak_reserved_bytes)} reserved "
            f"({self.extra:+.2%} over {format_bytes(self.bound_bytes)} requested)",
            f"  allocated  {format_bytes(self.peak_allocated_bytes)}",
            f"  stuck      {format_bytes(int(self.stuck_bytes.max(initial=0)))} at most",
        ]
        if self.num_emptied:
            lines.append(f"  emptied    {times(self.num_emptied)}, as the device was full")
        if not self.fits:
            lines.append(f"  fails      asking for {self.failed_item}")
        return "\n".join(lines)


def summarize(
    allocator: str,
    options: Mapping[str, Any],
    requests: Requests,
    served: int,
    series: NDArray[np.int64],
    addresses: NDArray[np.int64],
    num_emptied: int,
    capacity_bytes: int | None,
) -> Allocation:
    """The result, from series per request: reserved, allocated, loose bytes and segments."""
    fits = served == requests.items.size
    items, events = requests.items[:served], requests.events[:served]
    asked = np.where(items >= 0, 1, -1) * requests.item_bytes[np.where(items >= 0, items, ~items)]
    requested = np.maximum(np.cumsum(asked) - requests.rounding_bytes, 0)
    requested[: requests.empty_before] = 0
    reserved, allocated, loose, segments = series[:, :served]
    failed = None if fits else int(requests.events[served])
    num_events = requests.num_events if failed is None else max(0, failed)
    at = np.searchsorted(events, np.arange(num_events), side="right") - 1

    def after_events(values: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(at >= 0, values[np.maximum(at, 0)] if values.size else 0, 0)

    return Allocation(
        allocator=allocator,
        options=options,
        reserved_bytes=after_events(reserved),
        allocated_bytes=after_events(allocated),
        requested_bytes=after_events(requested),
        stuck_bytes=after_events(reserved - allocated - loose),
        peak_reserved_bytes=int(reserved.max(initial=0)),
        peak_allocated_bytes=int(allocated.max(initial=0)),
        bound_bytes=int(requested.max(initial=0)),
        capacity_bytes=capacity_bytes,
        fits=fits,
        failed_event=failed,
        failed_item=None if fits else requests.item_names[int(requests.items[served])],
        num_emptied=num_emptied,
        num_segments=int(segments.max(initial=0)),
        requests=requests,
        addresses=addresses[:served],
    )


def times(count: int) -> str:
    """``once``, or how often.

    Examples
    --------
    >>> times(1), times(3)
    ('once', '3 times')
    """
    return "once" if count == 1 else f"{count} times"
