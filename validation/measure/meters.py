"""One interface to measure the bytes of a function, whatever counts them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from schedsim.errors import SchedsimError

from .allocator import allocator_record
from .cuda import requested_bytes, requested_peak, reset_peak
from .storage import StorageTracker


@dataclass(frozen=True, slots=True)
class Reading:
    """Bytes beyond those alive before the first of the functions read together.

    Attributes
    ----------
    peak_bytes
        The most bytes during this function; at least 0.
    end_bytes
        Bytes that are left at its end, the result included.
    result
        What the function returned.
    """

    peak_bytes: int
    end_bytes: int
    result: Any


class Meter(Protocol):
    """An object that measures the bytes of functions."""

    name: str

    def read(self, *functions: Callable[[], Any]) -> list[Reading]:
        """Run `functions` one after another; gives a reading of each, relative to the start."""
        ...


class StorageMeter:
    """Counts storages of tensors that ops return: exact, on any device, without scratch memory."""

    name = "storage"

    def read(self, *functions: Callable[[], Any]) -> list[Reading]:
        """Run `functions` under a tracker. What existed before must outlive the work."""
        readings = []
        with no_collection(), StorageTracker() as tracker:
            for function in functions:
                tracker.mark()
                result = function()
                readings.append(Reading(tracker.peak.total_bytes, tracker.live_bytes, result))
        return readings


class AllocatorMeter:
    """Reads the CPU allocator's own record, including kernels' scratch memory; slow."""

    name = "allocator"

    def read(self, *functions: Callable[[], Any]) -> list[Reading]:
        """Run `functions` under the profiler. What existed before must outlive the work."""
        with no_collection():
            phases = allocator_record(*functions)
        readings, live = [], 0
        for changes, result in phases:
            peak = live
            for change in changes:
                live += change
                peak = max(peak, live)
            readings.append(Reading(peak, live, result))
        return readings


class CudaMeter:
    """Counts requested bytes of the CUDA caching allocator, including kernels' workspaces."""

    name = "cuda"

    def __init__(self, device: torch.device | str = "cuda") -> None:
        self.device = device

    def read(self, *functions: Callable[[], Any]) -> list[Reading]:
        """Run `functions`, waiting for the device before and after each."""
        readings = []
        with no_collection():
            torch.cuda.synchronize(self.device)
            before = requested_bytes(self.device)
            for function in functions:
                reset_peak(self.device)
                result = function()
                torch.cuda.synchronize(self.device)
                peak = max(0, requested_peak(self.device) - before)
                readings.append(Reading(peak, requested_bytes(self.device) - before, result))
        return readings


METERS = ("storage", "allocator", "cuda")


def get_meter(name: str | None, device: torch.device | str) -> Meter:
    """The meter called `name` for `device`; by default the one that predictions are compared with.

    The default is storage on the CPU, where the predictions are exact, and requested bytes on CUDA.
    """
    kind = torch.device(device).type
    if name is None:
        name = "cuda" if kind == "cuda" else "storage"
    if name not in METERS:
        raise SchedsimError(f"unknown meter {name!r}", hint=f"one of {', '.join(METERS)}")
    if (name == "cuda") != (kind == "cuda") and name != "storage":
        raise SchedsimError(
            f"meter {name!r} does not count bytes on {kind}",
            hint="storage works everywhere, allocator on cpu, cuda on cuda",
        )
    if name == "cuda":
        return CudaMeter(device)
    return AllocatorMeter() if name == "allocator" else StorageMeter()


def meter_of_budgets(device: torch.device | str) -> str | None:
    """Name of the meter whose bytes a budget bounds: what is allocated, scratch of kernels too.

    ``None`` on CUDA, whose own meter counts that.

    Examples
    --------
    >>> meter_of_budgets("cpu")
    'allocator'
    """
    return "allocator" if torch.device(device).type == "cpu" else None


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect no garbage in the block: cycles that happen to die in between would be noise.

    Inside another such block, it does nothing.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
