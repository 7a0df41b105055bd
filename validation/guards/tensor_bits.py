"""Numbers that represent the bits of a tensor, and gradients in which every entry differs."""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any, Protocol

import torch

_SMALLEST, _LARGEST, _PARTS = 512, 1 << 20, 64
_WEIGHT = 0x1E3779B97F4A7C15
_MIX = ((30, 0x3F58476D1CE4E5B9), (27, 0x14D049BB133111EB), (31, 1))
"""Shifts and odd factors, chosen like those of splitmix64 (Steele, Lea, Flood 2014)."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _Formed(Protocol):
    @property
    def shape(self) -> tuple[Any, ...]: ...
    @property
    def stride(self) -> tuple[Any, ...]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> Any: ...


def made_up_gradient(form: _Formed, seed: int) -> torch.Tensor:
    """A gradient in which every entry of memory differs; nothing but it is allocated."""
    device = form.device
    found = torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device=device)
    num = found.untyped_storage().nbytes() // found.element_size()
    # Entries share memory where the loss is a sum.
    found.as_strided((num,), (1,)).normal_(generator=torch.Generator(device).manual_seed(seed))
    return found


def bits_of(tensor: Any) -> tuple[Any, ...]:
    """Numbers that represent every bit of `tensor` and its place. O(entries)."""
    if not isinstance(tensor, torch.Tensor):
        return (tensor,)
    form = (tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
    flat = tensor.resolve_conj().resolve_neg()
    flat = torch.view_as_real(flat) if flat.is_complex() else flat
    strides = flat.stride()
    flat = flat.permute(sorted(range(flat.ndim), key=lambda dim: -strides[dim]))
    total = 0
    on_cpu = hashlib.sha256()  # needs no memory, and a fourth of the time
    for piece in _pieces(flat):
        if piece.device.type == "cpu":
            piece = piece.contiguous()
            on_cpu.update(raw_bytes(piece))
            continue
        mixed = torch.arange(1, piece.numel() + 1, device=piece.device).mul_(_WEIGHT)
        mixed.add_(piece.view(_INTEGERS[piece.element_size()]))
        # Each step maps numbers one to one, so that no change of a single entry is lost. A sum of
        # weighted entries would lose the top bits of two entries.
        for shift, factor in _MIX:
            mixed.bitwise_xor_((mixed >> shift).bitwise_and_((1 << (64 - shift)) - 1))
            mixed.mul_(factor)
        total = (total * 1000003 + int(mixed.sum())) % (1 << 64)
    return (*form, total or int.from_bytes(on_cpu.digest()[:8]))


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """A small tensor that represents the bits of `tensor`, its shape and its strides.

    Examples
    --------
    >>> one, other = torch.ones(2), torch.tensor([1.0, 2.0])
    >>> torch.equal(digest(one), digest(one.clone())), torch.equal(digest(one), digest(other))
    (True, False)
    """
    *_, number = bits_of(tensor)
    return torch.tensor([*tensor.shape, *tensor.stride(), number - (1 << 63)])


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous `tensor` of the CPU, which must outlive it.

    An array of NumPy would do, too, but for good: no storage that one was made of can be resized,
    as FSDP2 does with gathered parameters.
    """
    num_bytes = tensor.numel() * tensor.element_size()
    if not num_bytes:
        return memoryview(b"")
    return memoryview((ctypes.c_char * num_bytes).from_address(tensor.data_ptr())).cast("B")


def _pieces(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Views of `tensor`, or copies of small parts of it, in order."""
    if not tensor.is_contiguous():
        if tensor.ndim == 0 or tensor.numel() <= _SMALLEST:
            return [tensor.reshape(-1)]
        return [piece for one in tensor.unbind() for piece in _pieces(one)]
    flat = tensor.reshape(-1)
    size = min(_LARGEST, max(_SMALLEST, flat.numel() // _PARTS))
    return [flat[at : at + size] for at in range(0, flat.numel(), size)]
