"""PyTorch's caching allocator of CUDA memory, as its documentation and comments describe it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import SchedsimError

_MIB = 1 << 20

SMALL_SEGMENT = 2 << 20
"""Bytes that the allocator takes from the driver for small requests."""


@dataclass(frozen=True, slots=True)
class CachingOptions:
    """Settings of the allocator, as ``PYTORCH_ALLOC_CONF`` has them.

    What is modelled (PyTorch notes, "CUDA semantics: Memory management" and "Optimizing memory
    usage with PYTORCH_ALLOC_CONF"; comments at the head of ``c10/cuda/CUDACachingAllocator.cpp``
    and its Note [Expandable Segments]):

    - Requests are rounded up to multiples of 512 bytes. Those of at most 1 MiB are served from
      segments of 2 MiB, those below 10 MiB from segments of 20 MiB, larger ones from segments of
      their own size, rounded up to 2 MiB. The two pools never mix, nor do streams.
    - The smallest free block that fits is taken, at the lowest address among equals. The rest of it
      becomes a free block if the rest is at least 512 bytes (small pool) or more than 1 MiB (large
      pool). A freed block joins its free neighbours in the segment.
    - If no block fits, the allocator takes a segment from the driver. If the device is full, it
      returns oversize blocks and tries again, then returns every empty segment and tries again,
      then fails.
    - `expandable_segments`: one segment per pool and stream grows by pages of 2 MiB (small) or
      20 MiB (large) at the lowest address with room; its unused pages can be returned one by one;
      the rest of a block is split off from 512 bytes on.
    - `max_split_bytes`: blocks of at least this size are not split, and serve only requests of at
      least this size that are less than 20 MiB smaller.
    - `roundup_power2_divisions`: sizes go up to the next of this many equal steps between powers
      of two, where the size is more than 512 bytes times the number of steps.

    Not modelled: private pools of CUDA graphs, the age-based collection that
    ``garbage_collection_threshold`` turns on, and the driver's choice of addresses, which decides
    between free blocks of equal size (here the segment taken earlier comes first).

    Examples
    --------
    >>> CachingOptions.parse("expandable_segments:True,max_split_size_mb:128")
    CachingOptions(expandable_segments=True, max_split_bytes=134217728, roundup_power2_divisions=0)
    """

    expandable_segments: bool = False
    max_split_bytes: int | None = None
    roundup_power2_divisions: int = 0

    def __post_init__(self) -> None:
        if self.max_split_bytes is not None and self.max_split_bytes <= 20 * _MIB:
            raise SchedsimError(
                f"max_split_bytes {self.max_split_bytes} is not more than 20 MiB",
                hint="segments of 20 MiB must be splittable",
            )
        divisions = self.roundup_power2_divisions
        if divisions < 0 or divisions & (divisions - 1):
            raise SchedsimError(
                f"roundup_power2_divisions {divisions} is not a power of two",
                hint="1 rounds to 512 bytes alone, 4 to quarters of powers of two",
            )

    @classmethod
    def parse(cls, text: str) -> CachingOptions:
        """Settings written like the value of ``PYTORCH_ALLOC_CONF``."""
        found: dict[str, int | bool] = {}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, _, value = (word.strip() for word in part.partition(":"))
            if name == "expandable_segments" and value in ("True", "False"):
                found[name] = value == "True"
            elif name == "max_split_size_mb" and value.isdecimal():
                found["max_split_bytes"] = int(value) * _MIB
            elif name == "roundup_power2_divisions" and value.isdecimal():
                found[name] = int(value)
            elif name == "garbage_collection_threshold":
                raise SchedsimError(
                    f"allocator setting {part!r} is not modelled",
                    hint="leave it out: it changes nothing unless set_per_process_memory_fraction "
                    "limits the process",
                )
            else:
                raise SchedsimError(
                    f"allocator setting {part!r} is not modelled",
                    hint="expandable_segments:True|False, max_split_size_mb:N and "
                    "roundup_power2_divisions:N are, with commas between them",
                )
        return cls(**found)  # type: ignore[arg-type]

    def __str__(self) -> str:
        parts = []
        if self.expandable_segments:
            parts.append("expandable_segments:True")
        if self.max_split_bytes is not None:
            parts.append(f"max_split_size_mb:{self.max_split_bytes // _MIB}")
        if self.roundup_power2_divisions > 1:
            parts.append(f"roundup_power2_divisions:{self.roundup_power2_divisions}")
        return ",".join(parts)

    def block_bytes(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Block sizes to which requests are rounded up.

        Examples
        --------
        The example in PyTorch's notes: with 4 divisions, 1200 bytes lie between 1024 and 1280.

        >>> CachingOptions(roundup_power2_divisions=4).block_bytes(np.array([1200 << 10])) >> 10
        array([1280])
        >>> CachingOptions().block_bytes(np.array([1, 512, 513]))
        array([ 512,  512, 1024])
        """
        sizes = np.asarray(sizes, dtype=np.int64)
        rounded = np.maximum(512, -(-sizes // 512) * 512)
        divisions = self.roundup_power2_divisions
        if divisions > 1:
            # Exponents by integers: floats are not exact beyond 2^53.
            floor = np.array([1 << (int(size).bit_length() - 1) if size else 1 for size in sizes])
            step = np.maximum(floor // divisions, 1)
            rounded = np.where(sizes > 512 * divisions, -(-sizes // step) * step, rounded)
        return rounded
