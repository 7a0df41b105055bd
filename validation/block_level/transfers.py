"""Tensors of a step copied to host memory and back, on CUDA beside the computation.

On CUDA, copies run on two streams of their own, from and to pinned memory. A copy starts behind
what was issued before it. A run that needs the copied tensor, or the memory that the copy frees,
waits for the event of the copy on the device, never on the host. On the CPU, "host" is a second set
of buffers, and a copy is over when its call returns.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from schedsim.plans.links import Link

from ..torch_private.storage_refs import storage_key


class HostPool:
    """Buffers of host memory, kept from step to step, and pinned for CUDA.

    Attributes
    ----------
    used_bytes, peak_bytes
        Bytes in use now, and the most in use so far.
    """

    def __init__(self, *, pinned: bool) -> None:
        self.used_bytes = self.peak_bytes = 0
        self._pinned = pinned
        self._free: dict[int, list[tuple[Tensor, Any]]] = {}

    def take(self, size_bytes: int) -> tuple[Tensor, Any]:
        """A buffer, and the event of the last copy that reads it."""
        self.used_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        free = self._free.get(size_bytes)
        if free:
            return free.pop()
        if self._pinned:
            return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True), None
        # Outside of torch's allocator, so that meters of the device do not count it.
        return torch.from_numpy(np.empty(size_bytes, dtype=np.uint8)), None

    def give(self, buffer: Tensor, read: Any) -> None:
        """Take `buffer` back; the next copy that writes it waits for the event `read`."""
        self.used_bytes -= buffer.numel()
        self._free.setdefault(buffer.numel(), []).append((buffer, read))

    def release(self) -> None:
        """Free the buffers that are not in use."""
        self._free.clear()


@dataclass(frozen=True, slots=True)
class _View:
    """A tensor as a view of one of several storages."""

    storage: int
    dtype: torch.dtype
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass
class Parked:
    """Tensors in host memory.

    Attributes
    ----------
    views
        The view of each tensor; ``None`` for a tensor that was not copied.
    left, back
        Events: of the copy to the host, and of the last copy back.
    """

    buffers: list[Tensor]
    views: list[_View | None]
    left: Any
    back: Any = None
    fixed: list[Tensor | None] = field(default_factory=list)


class Mover:
    """Copies tensors of one device to the host and back."""

    def __init__(self, device: torch.device) -> None:
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())  # as tensors name theirs
        self.device = device
        self.on_cuda = device.type == "cuda"
        self.pool = HostPool(pinned=self.on_cuda)
        stream: Any = torch.cuda.Stream
        self._out: Any = stream(device) if self.on_cuda else None
        self._in: Any = stream(device) if self.on_cuda else None

    def out(self, tensors: list[Any], keep: set[int]) -> Parked:
        """Start copying the storages of `tensors` to the host, except those with a key in `keep`.

        The tensors must stay alive until `left` has been waited for.
        """
        order: dict[int, torch.UntypedStorage] = {}
        places: dict[int, int] = {}
        views: list[_View | None] = []
        fixed: list[Tensor | None] = []
        for tensor in tensors:
            plain = isinstance(tensor, Tensor) and tensor.layout == torch.strided
            if not plain or tensor.device != self.device or _key(tensor) in keep:
                views.append(None)
                fixed.append(tensor)
                continue
            key = _key(tensor)
            if key not in order:
                order[key], places[key] = tensor.untyped_storage(), len(places)
            views.append(
                _View(
                    places[key],
                    tensor.dtype,
                    int(tensor.storage_offset()),
                    tuple(tensor.shape),
                    tensor.stride(),
                )
            )
            fixed.append(None)
        taken = [self.pool.take(storage.nbytes()) for storage in order.values()]
        sources = [_bytes_of(storage, self.device) for storage in order.values()]
        if not self.on_cuda:
            for source, (buffer, _) in zip(sources, taken, strict=True):
                buffer.copy_(source)
            return Parked([buffer for buffer, _ in taken], views, None, fixed=fixed)
        self._out.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._out):
            for source, (buffer, read) in zip(sources, taken, strict=True):
                if read is not None:
                    self._out.wait_event(read)
                buffer.copy_(source, non_blocking=True)
            left = self._out.record_event()
        return Parked([buffer for buffer, _ in taken], views, left, fixed=fixed)

    def back(self, parked: Parked) -> tuple[list[Any], Any]:
        """Start copying back; the tensors, and the event to wait for before they are read."""
        sizes = [buffer.numel() for buffer in parked.buffers]
        made = [torch.empty(size, dtype=torch.uint8, device=self.device) for size in sizes]
        if self.on_cuda:
            # The memory comes from the computing stream, whose issued work may still use it.
            self._in.wait_stream(torch.cuda.current_stream(self.device))
            self._in.wait_event(parked.left)
            with torch.cuda.stream(self._in):
                for target, buffer in zip(made, parked.buffers, strict=True):
                    target.copy_(buffer, non_blocking=True)
                parked.back = self._in.record_event()
        else:
            for target, buffer in zip(made, parked.buffers, strict=True):
                target.copy_(buffer)
        storages = [target.untyped_storage() for target in made]
        tensors: list[Any] = []
        for view, tensor in zip(parked.views, parked.fixed, strict=True):
            if view is None:
                tensors.append(tensor)
                continue
            empty = torch.empty(0, dtype=view.dtype, device=self.device)
            tensors.append(empty.set_(storages[view.storage], view.offset, view.size, view.stride))
        return tensors, parked.back

    def wait(self, event: Any) -> None:
        """Make the work that is issued from now on run after `event`."""
        if event is not None:
            torch.cuda.current_stream(self.device).wait_event(event)

    def forget(self, parked: Parked) -> None:
        """Take back the host memory of `parked`."""
        for buffer in parked.buffers:
            self.pool.give(buffer, parked.back if parked.back is not None else parked.left)
        parked.buffers = []


def _key(tensor: Tensor) -> int:
    return storage_key(tensor)


def _bytes_of(storage: torch.UntypedStorage, device: torch.device) -> Tensor:
    """All of `storage` as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def measured_links(device: torch.device, size_bytes: int = 2**26) -> tuple[Link, Link]:
    """Measured links of copies of `size_bytes`, to the host and back; takes tenths of a second."""
    mover = Mover(device)
    tensor = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
    times: list[list[float]] = [[], []]
    for _ in range(5):
        for k in (0, 1):
            _synchronized(mover)
            begun = time.perf_counter()
            if k == 0:
                parked = mover.out([tensor], set())
            else:
                mover.back(parked)
            _synchronized(mover)
            times[k].append(time.perf_counter() - begun)
        mover.forget(parked)
    out, back = (Link(size_bytes / statistics.median(row[1:])) for row in times)
    return out, back


def _synchronized(mover: Mover) -> None:
    if mover.on_cuda:
        torch.cuda.synchronize(mover.device)
