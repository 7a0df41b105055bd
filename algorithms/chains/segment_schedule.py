"""Schedules made of segments between checkpoints, each replayed once before its backward."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from schedsim.dataflow.chain import Chain
from schedsim.simulation.schedule import Schedule


def segment_schedule(chain: Chain, starts: Sequence[int]) -> Schedule:
    """The schedule that stores the inputs of the stages in `starts` and replays each segment once.

    The last segment is not replayed: its bundles are kept from the first pass. O(L).

    Parameters
    ----------
    starts
        First stage of each segment, ascending, beginning with 0.

    Examples
    --------
    >>> from schedsim import Chain
    >>> ones = [1] * 4
    >>> chain = Chain.from_arrays("four", 1, forward_s=ones, backward_s=ones, output_bytes=ones,
    ...                           saved_bytes=ones)
    >>> segment_schedule(chain, [0, 2])
    Schedule(F0 F1 F2 F3 loss B3 B2 F0 F1 B1 B0)
    """
    num = chain.num_stages
    bounds = [*starts, num]
    if bounds[0] != 0 or any(a >= b for a, b in pairwise(bounds)):
        raise ValueError(f"segment starts {list(starts)} do not ascend from 0 to below {num}")
    parts = [np.arange(num + 1)]
    for segment in range(len(bounds) - 2, -1, -1):
        first, end = bounds[segment], bounds[segment + 1]
        if end != num:
            parts.append(np.arange(first, end))
        parts.append(2 * num - np.arange(end - 1, first - 1, -1))
    return Schedule(chain.op_names, np.concatenate(parts))


def equal_starts(num_stages: int, num_segments: int) -> list[int]:
    """First stages of `num_segments` segments whose lengths differ by at most one.

    Examples
    --------
    >>> equal_starts(10, 3)
    [0, 3, 6]
    """
    return [num_stages * k // num_segments for k in range(num_segments)]
