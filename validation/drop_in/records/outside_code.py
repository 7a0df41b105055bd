"""The memory of the caller's own code between the halves of parts, measured in one whole step."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple, Protocol

import torch

from ...measure.allocator import NO_BLOCKS, AllocatorRecord, blocks_left, levels, most_and_left
from ...measure.cuda import requested_bytes, requested_peak, reset_peak
from ...torch_private.profiler_records import is_profiling


class OutsideBytes(NamedTuple):
    """Bytes that the code between two marks takes, beyond the bytes at the first mark.

    Attributes
    ----------
    most
        The most bytes at any time.
    left
        Bytes that remain at the second mark.
    level, top
        Bytes at the first mark, and the most until the second, beyond those at the start of the
        record. What parts hold is among them, and what the code has released is not.
    net_most, net_left
        `most` and `left` where the release of what was there at the first mark counts: of the
        watched blocks on a CPU, of all on a CUDA device. The latter may be negative.
    released
        Bytes of watched blocks whose release the record tells. It tells none of a block that was
        allocated while nothing was recorded. Zero on a CUDA device, where none need be told.
    """

    most: int
    left: int
    level: int = 0
    top: int = 0
    net_most: int = 0
    net_left: int = 0
    released: int = 0


def most_of(one: OutsideBytes, other: OutsideBytes) -> OutsideBytes:
    """The most of each number of both.

    Examples
    --------
    >>> most_of(OutsideBytes(3, 0), OutsideBytes(2, 1))[:2]
    (3, 1)
    """
    return OutsideBytes(*map(max, one, other))


def joined(first: OutsideBytes, then: OutsideBytes, *, is_apart: bool) -> OutsideBytes:
    """Two stretches as one: what the first has left stays through the second.

    Parameters
    ----------
    is_apart
        Whether the most bytes of the second count elsewhere.

    Examples
    --------
    >>> joined(OutsideBytes(9, 4), OutsideBytes(7, 2), is_apart=False)[:2]
    (11, 6)
    >>> joined(OutsideBytes(9, 4), OutsideBytes(7, 2), is_apart=True)[:2]
    (9, 6)
    """
    return OutsideBytes(
        first.most if is_apart else max(first.most, first.left + then.most),
        first.left + then.left,
        first.level,
        first.top if is_apart else max(first.top, then.top),
        first.net_most if is_apart else max(first.net_most, first.net_left + then.net_most),
        first.net_left + then.net_left,
        first.released + then.released,
    )


class OutsideMeter(Protocol):
    """Measures bytes between marks of a step.

    Attributes
    ----------
    left_blocks, held_blocks
        Once it has stopped: bytes by address of what the last stretch has allocated, and not
        released, and of what any other has. Empty on a CUDA device, whose own count tells what is
        resident.
    """

    left_blocks: Mapping[int, int]
    held_blocks: Mapping[int, int]

    def start(self) -> None:
        """Begin to measure."""

    def mark(self, watched: Mapping[int, int] = NO_BLOCKS) -> None:
        """End a stretch, and begin the next, in which blocks `watched` may be released.

        Parameters
        ----------
        watched
            Bytes of the blocks by their addresses.
        """

    def release(self, num_bytes: int) -> None:
        """Count `num_bytes` from before the start as free from now on."""

    def stop(self) -> list[OutsideBytes]:
        """The measured stretches: one more than there were marks."""


class CpuOutside:
    """Measures by the record of the CPU allocator."""

    def __init__(self) -> None:
        self.left_blocks: Mapping[int, int] = NO_BLOCKS
        self.held_blocks: Mapping[int, int] = NO_BLOCKS
        self._record = AllocatorRecord()
        self._released: list[int] = []  # for each phase of the record; 0 where a mark began it
        self._watched: list[dict[int, int]] = []  # for each stretch

    def start(self) -> None:
        """Begin."""
        self._record.start()
        self.mark()

    def mark(self, watched: Mapping[int, int] = NO_BLOCKS) -> None:
        """End a stretch, and begin the next."""
        self._begin_phase(0)
        self._watched.append(dict(watched))

    def release(self, num_bytes: int) -> None:
        """Count `num_bytes` as free from now on, which the record does not tell."""
        if num_bytes > 0:
            self._begin_phase(num_bytes)

    def _begin_phase(self, released_bytes: int) -> None:
        self._released.append(released_bytes)
        self._record.mark()

    def stop(self) -> list[OutsideBytes]:
        """The stretches; none if another record began."""
        phases = self._record.stop()
        if len(phases) != len(self._released):
            return []
        found: list[list[int]] = []  # (first phase, the one after the last, level, top)
        for k, (level, top) in enumerate(levels(phases, self._released)):
            if self._released[k]:
                found[-1] = [found[-1][0], k + 1, found[-1][2], max(found[-1][3], top)]
            else:
                found.append([k, k + 1, level, top])
        rows = []
        for (first, end, level, top), watched in zip(found, self._watched, strict=True):
            phase = list(chain(*phases[first:end]))
            net_most, net_left = most_and_left(phase, watched)
            most, left = most_and_left(phase)
            released = left - net_left
            rows.append(OutsideBytes(most, left, level, top, net_most, net_left, released))
        self.left_blocks = blocks_left(phase)
        alive = blocks_left(list(chain(*phases)))
        self.held_blocks = {it: n for it, n in alive.items() if it not in self.left_blocks}
        return rows


class CudaOutside:
    """Measures by the statistics of the CUDA allocator, whose peak is reset at each mark."""

    def __init__(self, device: torch.device) -> None:
        self.left_blocks = self.held_blocks = NO_BLOCKS
        self._device = device
        self._found: list[OutsideBytes] = []
        self._start = self._before = 0

    def start(self) -> None:
        """Begin."""
        self._start = self._before = requested_bytes(self._device)
        reset_peak(self._device)

    def mark(self, watched: Mapping[int, int] = NO_BLOCKS) -> None:
        """End a stretch, and begin the next."""
        now, most = requested_bytes(self._device), requested_peak(self._device)
        before, start = self._before, self._start
        most_beyond, left = max(0, most - before), now - before
        self._found.append(
            OutsideBytes(most_beyond, max(0, left), before - start, most - start, most_beyond, left)
        )
        self._before = now
        reset_peak(self._device)

    def release(self, num_bytes: int) -> None:
        """Nothing: the device's own count tells it."""

    def stop(self) -> list[OutsideBytes]:
        """The stretches."""
        self.mark()
        return self._found


def outside_meter(device: torch.device) -> OutsideMeter | None:
    """The meter for `device`; ``None`` if another profiler is running."""
    if device.type == "cuda":
        return CudaOutside(device)
    return None if is_profiling() else CpuOutside()
