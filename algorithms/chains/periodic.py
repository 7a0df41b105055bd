"""Equal segments, as many as the simulated peak asks for."""

from __future__ import annotations

import math
from collections.abc import Iterator

from schedsim.dataflow.chain import Chain
from schedsim.plans.plan import Plan, best_of, timed
from schedsim.simulation.schedule import Schedule

from .segment_schedule import equal_starts, segment_schedule

ALL_UP_TO = 500
"""On chains of up to this many stages, every number of segments is tried."""

SPREAD_FROM = 20_000
"""From so many stages on, the numbers of segments tried grow by a factor."""


@timed()
def periodic(chain: Chain, budget_bytes: int, *, num_segments: int | None = None) -> Plan:
    """The fastest plan of equal segments that fits; each segment is replayed once.

    Parameters
    ----------
    num_segments
        By default every number of segments is simulated; on chains of more than `ALL_UP_TO` stages,
        those up to 2 sqrt(L) and powers of 2^(1/4) beyond; from `SPREAD_FROM` stages on, powers of
        2^(1/2).

    Notes
    -----
    O(L) per number of segments.

    References
    ----------
    Chen, Xu, Zhang, Guestrin, "Training deep nets with sublinear memory cost", arXiv 1604.06174,
    2016, equation 1, with the best k instead of sqrt(n).

    Examples
    --------
    >>> from schedsim import Chain
    >>> ones = [1] * 16
    >>> chain = Chain.from_arrays("ones", 1, forward_s=ones, backward_s=ones, output_bytes=ones,
    ...                           saved_bytes=[2] * 16)
    >>> periodic(chain, 20).options
    {'num_segments': 2}
    """
    if num_segments is not None and not 1 <= num_segments <= chain.num_stages:
        raise ValueError(f"num_segments {num_segments} is not in 1..{chain.num_stages}")
    counts = [num_segments] if num_segments else _counts(chain.num_stages)

    def schedules() -> Iterator[tuple[dict[str, int], Schedule]]:
        for count in counts:
            starts = equal_starts(chain.num_stages, count)
            yield {"num_segments": count}, segment_schedule(chain, starts)

    return best_of(chain, budget_bytes, schedules(), planner="periodic")


def _counts(num_stages: int) -> list[int]:
    if num_stages <= ALL_UP_TO:
        return list(range(1, num_stages + 1))
    steps = 2  # for each doubling
    counts = {1, num_stages}
    if num_stages < SPREAD_FROM:
        steps = 4
        counts |= set(range(1, 2 * math.isqrt(num_stages) + 1))
    exponents = (k / steps for k in range(steps * num_stages.bit_length()))
    counts |= {min(num_stages, round(2**exponent)) for exponent in exponents}
    return sorted(counts)
