"""The layout of resident tensors in the segments of CUDA's allocator, as requests for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from .storage import storages

SMALL_LIMIT = 1 << 20
MOST_HOLE = 1 << 36
"""Addresses further apart are of two segments that grow by themselves."""

GAP_PIECE = 8 << 20
"""Size of the pieces of a gap: of the pool of its segment, and too small for an own segment."""


def blocks_in_use(device: torch.device) -> frozenset[int]:
    """The addresses of all blocks that are in use."""
    found = set()
    for segment in _segments(device):
        address = int(segment["address"])
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                found.add(address)
            address += block["size"]
    return frozenset(found)


def _segments(device: torch.device) -> list[dict[str, Any]]:
    number = device.index if device.index is not None else torch.cuda.current_device()
    memory: Any = torch.cuda.memory  # its function is not typed
    return [s for s in memory.memory_snapshot() if s["device"] == number]


def resident_layout(
    tensors: Any, device: torch.device, others: Collection[int] = ()
) -> tuple[tuple[int, ...], ...]:
    """The bytes of the blocks of `tensors` in each segment, by address; gaps as negative bytes.

    Blocks at the addresses `others` count as well.

    Tensors that are allocated by this layout lie in segments as they do now, once the gaps are
    freed: whether a gradient finds room between parameters is part of what is reserved. Segments
    that contain none of `tensors` are left out. Growing segments of a pool are one, with gaps for
    the addresses between them, where no memory is: a later request may need more than such a gap.
    """
    kept = {storage.data_ptr() for storage in storages(tensors) if storage.nbytes()} | {*others}
    torch.cuda.empty_cache()  # free pages of a growing segment are not resident
    segments = _segments(device)
    found: list[tuple[int, ...]] = []
    for segment in _joined(sorted(segments, key=lambda s: int(s["address"]))):
        pieces = _of_segment(segment, kept)
        while segment.get("is_expandable") and pieces and pieces[-1] < 0:
            pieces.pop()  # pages that are given back by themselves
        if pieces:
            found.append(tuple(pieces))
    return tuple(found)


def _joined(segments: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """`segments`, by address, with growing ones of a pool and stream as one."""
    found: list[dict[str, Any]] = []
    last: dict[tuple[Any, Any], dict[str, Any]] = {}
    for segment in segments:
        key = segment.get("segment_type"), segment.get("stream")
        before = last.get(key)
        if segment.get("is_expandable") and before is not None:
            hole = segment["address"] - before["address"] - before["total_size"]
            if hole <= MOST_HOLE:
                blank = [{"state": "unmapped", "size": hole}] if hole else []
                before["blocks"] = [*before["blocks"], *blank, *segment["blocks"]]
                before["total_size"] += hole + segment["total_size"]
                continue
        found.append(dict(segment))
        if segment.get("is_expandable"):
            last[key] = found[-1]
    return found


def _of_segment(segment: dict[str, Any], kept: set[int]) -> list[int]:
    address, blocks = segment["address"], segment["blocks"]
    pieces: list[int] = []
    small = sum(block["size"] for block in blocks) <= 2 * SMALL_LIMIT
    if segment.get("is_expandable"):
        small = segment.get("segment_type") == "small"
    gap, anything = 0, False
    for block in blocks:
        if address in kept and block["state"] == "active_allocated":
            pieces += _gap(gap, small)
            pieces.append(block["size"])
            gap, anything = 0, True
        else:
            gap += block["size"]
        address += block["size"]
    pieces += _gap(gap, small)
    return pieces if anything else []


def _gap(size: int, small: bool) -> Iterator[int]:
    """`size` in pieces, negative."""
    piece = SMALL_LIMIT if small else GAP_PIECE
    while size > 0:
        # The last piece must not be of the small pool where the others are of the large one.
        taken = size if size <= piece or (not small and size - piece <= SMALL_LIMIT) else piece
        yield -taken
        size -= taken
