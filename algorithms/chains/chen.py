"""Chen et al. 2016: sqrt(n) segments, and the greedy choice of segments by size."""

from __future__ import annotations

import math
from typing import Literal

from schedsim.dataflow.chain import Chain
from schedsim.plans.plan import Plan, best_of, timed

from .segment_schedule import equal_starts, segment_schedule

MAX_THRESHOLDS = 400
"""The search over all thresholds tries at most this many, evenly spaced."""

MAX_WORK = 2_000_000
"""Stages times thresholds: on chains so long that this is passed, fewer thresholds are tried."""


@timed()
def chen_sqrt(chain: Chain, budget_bytes: int) -> Plan:
    """The plan of round(sqrt(L)) equal segments, each replayed once; O(L).

    References
    ----------
    Chen, Xu, Zhang, Guestrin, "Training deep nets with sublinear memory cost", arXiv 1604.06174,
    2016, section 4.1, equation 1.

    Examples
    --------
    >>> from schedsim import Chain
    >>> ones = [1] * 16
    >>> chain = Chain.from_arrays("ones", 1, forward_s=ones, backward_s=ones, output_bytes=ones,
    ...                           saved_bytes=ones)
    >>> chen_sqrt(chain, 100).options
    {'num_segments': 4}
    """
    count = max(1, round(math.sqrt(chain.num_stages)))
    schedule = segment_schedule(chain, equal_starts(chain.num_stages, count))
    schedules = [({"num_segments": count}, schedule)]
    return best_of(chain, budget_bytes, schedules, planner="chen_sqrt")


@timed()
def chen_greedy(
    chain: Chain, budget_bytes: int, *, search: Literal["paper", "all"] = "all"
) -> Plan:
    """The fastest plan of Algorithm 3 that fits, over thresholds b.

    A segment is closed when the bundles gathered since the last checkpoint pass b; size(v) of the
    paper is ``saved_bytes`` of a stage, and the checkpoint kept its ``output_bytes``.

    Parameters
    ----------
    search
        ``"paper"``: the six values of appendix A around ``b0 = sqrt(x y)``; ``"all"``: those, and
        every threshold at which the segments change, at most `MAX_THRESHOLDS` of them (on more
        than 5,000 stages, at most `MAX_WORK` divided by the number of stages).

    References
    ----------
    Chen et al. 2016, algorithm 3 and appendix A.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("uneven", 1, forward_s=[1] * 4, backward_s=[2] * 4,
    ...                           output_bytes=[1] * 4, saved_bytes=[9, 1, 1, 1])
    >>> chen_greedy(chain, 13).makespan_s
    13.0
    """
    if search not in ("paper", "all"):
        raise ValueError(f"search {search!r} is neither 'paper' nor 'all'")
    thresholds = set(_paper_thresholds(chain))
    if search == "all":
        thresholds |= set(_all_thresholds(chain))
    tried: dict[tuple[int, ...], int] = {}
    for threshold in sorted(thresholds):
        tried.setdefault(tuple(greedy_starts(chain, threshold)), threshold)
    schedules = (({"b_bytes": b}, segment_schedule(chain, starts)) for starts, b in tried.items())
    return best_of(chain, budget_bytes, schedules, planner="chen_greedy")


def greedy_starts(chain: Chain, threshold_bytes: int) -> list[int]:
    """First stages of the segments that Algorithm 3 makes with threshold b; O(L).

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("uneven", 1, forward_s=[1] * 4, backward_s=[2] * 4,
    ...                           output_bytes=[1] * 4, saved_bytes=[9, 1, 1, 1])
    >>> greedy_starts(chain, 8), greedy_starts(chain, 0)
    ([0, 1], [0, 1, 2, 3])
    """
    starts, gathered = [0], 0
    for i, stage in enumerate(chain.stages[:-1]):
        gathered += stage.saved_bytes
        if gathered > threshold_bytes:
            starts.append(i + 1)
            gathered = 0
    return starts


def _paper_thresholds(chain: Chain) -> list[int]:
    starts = greedy_starts(chain, 0)
    stored = sum(chain.stages[start - 1].output_bytes for start in starts[1:])
    largest = max(stage.saved_bytes for stage in chain.stages)
    middle = math.sqrt(max(1, stored) * max(1, largest))
    low, high = middle / math.sqrt(2), middle * math.sqrt(2)
    return [0, *(round(low + (high - low) * k / 5) for k in range(6))]


def _all_thresholds(chain: Chain) -> list[int]:
    # The segments change only at sums of consecutive bundles.
    sums: set[int] = set()
    num = chain.num_stages
    step = max(1, num * num // (50 * MAX_THRESHOLDS * 10))
    for first in range(0, num, step):
        total = 0
        for stage in chain.stages[first:]:
            total += stage.saved_bytes
            sums.add(total)
    ordered = sorted(sums)
    most = max(16, min(MAX_THRESHOLDS, MAX_WORK // num))
    if len(ordered) <= most:
        return ordered
    return [ordered[k * (len(ordered) - 1) // (most - 1)] for k in range(most)]
