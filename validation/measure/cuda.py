"""Bytes on a CUDA device by the caching allocator: requested, allocated and reserved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from schedsim.allocators import CachingOptions
from schedsim.errors import SchedsimError

from ..torch_private.cuda_settings import settings_in_force
from ..torch_private.profiler_records import forget_library_workspaces


@dataclass(frozen=True, slots=True)
class CudaPeak:
    """Largest bytes while a function ran, including everything allocated before.

    Attributes
    ----------
    requested_bytes
        Bytes that tensors and kernels requested; what a plan predicts.
    allocated_bytes
        The same bytes, rounded up to blocks (multiples of 512 bytes).
    reserved_bytes
        Bytes taken from the driver, including fragmentation and caches.
    """

    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int


def cuda_peak(
    function: Callable[[], Any], device: torch.device | str = "cuda"
) -> tuple[CudaPeak, Any]:
    """The peak of `device` while `function` runs, and its result; waits for the device twice.

    Reserved bytes are counted from an emptied cache, so that they belong to `function`.
    """
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    result = function()
    torch.cuda.synchronize(device)
    stats = torch.cuda.memory_stats(device)
    peaks = (stats[f"{name}_bytes.all.peak"] for name in ("requested", "allocated", "reserved"))
    return CudaPeak(*peaks), result


@contextmanager
def limited_to(limit_bytes: int | None, device: torch.device) -> Iterator[None]:
    """Let the allocator reserve at most `limit_bytes`, or the whole device for ``None``."""
    total = torch.cuda.get_device_properties(device).total_memory
    share = 1.0 if limit_bytes is None else min(1.0, limit_bytes / total)
    torch.cuda.set_per_process_memory_fraction(share, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def allocator_settings() -> dict[str, Any]:
    """The modelled settings of this process's allocator, as `schedsim.allocate` takes them.

    They are those in force: of ``PYTORCH_ALLOC_CONF``, or of a later call that changed them.
    """
    found: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in settings_in_force().split(","))):
        try:
            options = CachingOptions.parse(part)
        except SchedsimError:
            continue  # not modelled
        default = CachingOptions()
        for name in CachingOptions.__dataclass_fields__:
            if getattr(options, name) != getattr(default, name):
                found[name] = getattr(options, name)
    return found


def requested_bytes(device: torch.device | str = "cuda") -> int:
    """Requested bytes of live blocks."""
    return int(torch.cuda.memory_stats(device).get("requested_bytes.all.current", 0))


def reserved_bytes(device: torch.device | str = "cuda") -> int:
    """Bytes that the allocator holds, in use or not."""
    return int(torch.cuda.memory_stats(device).get("reserved_bytes.all.current", 0))


def empty_cache(device: torch.device) -> None:
    """Give back to `device` what its allocator holds unused."""
    with torch.cuda.device(device):
        torch.cuda.empty_cache()


def requested_peak(device: torch.device | str = "cuda") -> int:
    """The most requested bytes since `reset_peak`."""
    return int(torch.cuda.memory_stats(device).get("requested_bytes.all.peak", 0))


def reset_peak(device: torch.device | str = "cuda") -> None:
    """Start a new peak."""
    torch.cuda.reset_peak_memory_stats(device)


def library_workspace_bytes(device: torch.device | str = "cuda") -> int:
    """Bytes that the matrix libraries keep on `device` once they have been used.

    The number is 0 since PyTorch 2.15, which allocates and frees cuBLAS's workspace within each
    product. Before, the workspace was allocated at the first product of each handle and stream, and
    kept; after this call it exists, so that it counts as resident and not for the first op
    measured.
    """
    torch.cuda.synchronize(device)
    forget_library_workspaces()  # so that a second call finds the same state
    before = requested_bytes(device)

    def products(_gradient: Any = None) -> None:
        with torch.no_grad():
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                product = torch.ones(64, 64, device=device, dtype=dtype)
                nn.functional.linear(product @ product, product, product[0])

    products()
    # The backward of autograd runs in its own thread with its own handles, forwards that are
    # repeated there included.
    found = nn.Linear(64, 64, device=device)(torch.ones(64, 64, device=device)).sum()
    found.register_hook(products)
    found.backward()
    del found
    torch.cuda.synchronize(device)
    return max(0, requested_bytes(device) - before)
