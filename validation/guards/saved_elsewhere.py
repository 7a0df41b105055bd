"""Stores what a plain step saves for its backward, and its results, outside of device memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import IO

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ..torch_private.checkpoint_frames import remade_elsewhere
from ..torch_private.storage_refs import storage_key
from .tensor_bits import raw_bytes

_ALIGNED = 64
"""Bytes to whose multiples the copies in a file begin."""


@contextmanager
def saved_elsewhere(resident: Iterable[Tensor]) -> Iterator[None]:
    """Save tensors for backward on the host, or from the host in a file, within the block.

    Both forward and backward must run in the block. The kernels are those of the plain step, and
    get tensors of the same strides. What ``torch.utils.checkpoint`` makes again is saved so, too.

    Parameters
    ----------
    resident
        Tensors that are saved unchanged, with all that shares their memory: parameters, buffers.
    """
    known = {storage_key(tensor) for tensor in resident if tensor.layout is torch.strided}
    with tempfile.TemporaryFile() as file:

        def pack(tensor: Tensor) -> Callable[[], Tensor]:
            if not is_plain(tensor) or storage_key(tensor) in known:
                return lambda: tensor
            return _in_file(tensor, file) if tensor.device.type == "cpu" else _on_host(tensor)

        with remade_elsewhere(pack), saved_tensors_hooks(pack, lambda get: get()):
            yield


@contextmanager
def copied_elsewhere() -> Iterator[Callable[[Tensor], Tensor]]:
    """Give a function that copies tensors to the host, or from the host into a mapped file.

    Copies are contiguous, and can be read until the end of the block.

    Raises
    ------
    OSError
        By the function: the file has no room.

    Examples
    --------
    >>> import torch
    >>> with copied_elsewhere() as copied:
    ...     copied(torch.arange(3.0)).tolist()
    [0.0, 1.0, 2.0]
    """
    with tempfile.TemporaryFile() as file:

        def copied(tensor: Tensor) -> Tensor:
            tensor = tensor.detach()
            if tensor.device.type != "cpu" or not is_plain(tensor):
                return on_host(tensor)
            num_bytes = tensor.numel() * tensor.element_size()
            place = -(-file.seek(0, 2) // _ALIGNED) * _ALIGNED
            _reserve(file, place, num_bytes)
            raw = np.memmap(file, np.uint8, "r+", place, num_bytes)
            return torch.from_numpy(raw).view(tensor.dtype).view(tensor.shape).copy_(tensor)

        yield copied


def copied_aside(tensor: Tensor, copied: Callable[[Tensor], Tensor]) -> Tensor:
    """A copy of `tensor` by `copied`; in its own memory where no other has room for its form.

    From it the content of `tensor` can be put back.
    """
    tensor = tensor.detach()
    if is_plain(tensor):
        with suppress(OSError):
            return copied(tensor)
    return tensor.clone()


def on_host(tensor: Tensor) -> Tensor:
    """A copy of `tensor`, or of this rank's share of it, in the host's memory."""
    tensor = tensor.detach()
    local = getattr(tensor, "to_local", None)  # of a sharded one
    if local is not None and type(tensor) is not Tensor:
        tensor = local()
    if tensor.layout is torch.strided and tensor.numel() and not tensor.untyped_storage().nbytes():
        return torch.empty(0)  # a whole parameter of FSDP2 between two uses: nothing to read
    return tensor.to("cpu", copy=True)


def forbids_hooks(error: Exception) -> bool:
    """Whether torch says by `error` that what it runs bears no hooks of saved tensors."""
    return isinstance(error, RuntimeError) and "saved tensor hooks" in str(error)


def is_plain(tensor: Tensor) -> bool:
    """Whether the memory of `tensor` holds its numbers as they are, and holds some."""
    odd = tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg()
    return type(tensor) is Tensor and tensor.numel() > 0 and not odd


def _reserve(file: IO[bytes], place: int, num_bytes: int) -> None:
    """Take the room in `file` now: a mapped file on a full disk would end the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), place, num_bytes)


def _span(tensor: Tensor) -> Tensor:
    """The range of memory from the tensor's first entry to its last."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    length = 1 + sum((size - 1) * stride for size, stride in pairs)
    return tensor.detach().as_strided((length,), (1,))


def _on_host(tensor: Tensor) -> Callable[[], Tensor]:
    shape, stride, device = tuple(tensor.shape), tensor.stride(), tensor.device
    kept = _span(tensor).to("cpu", copy=True)
    return lambda: kept.to(device).as_strided(shape, stride)


def _in_file(tensor: Tensor, file: IO[bytes]) -> Callable[[], Tensor]:
    shape, stride, dtype = tuple(tensor.shape), tensor.stride(), tensor.dtype
    span = _span(tensor)
    length, place = span.numel(), file.seek(0, 2)
    file.write(raw_bytes(span))

    def read() -> Tensor:
        found = torch.empty(length, dtype=dtype)
        file.seek(place)
        file.readinto(raw_bytes(found))  # type: ignore[attr-defined]  # a binary file has it
        return found.as_strided(shape, stride)

    return read
