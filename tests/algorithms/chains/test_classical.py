"""Segments, periodic, Chen and bisection: closed forms and shapes."""

from __future__ import annotations

import pytest
from chains import unit_chain
from schedsim.algorithms.chains.bisection import bisection_schedule
from schedsim.algorithms.chains.chen import chen_sqrt, greedy_starts
from schedsim.algorithms.chains.segment_schedule import equal_starts, segment_schedule

from schedsim import Chain, simulate

ROOMY = 10**9


def count_forwards(chain: Chain, schedule) -> int:
    return int((schedule.bind(chain) < chain.num_stages).sum())


@pytest.mark.parametrize(("num", "segments", "forwards"), [(100, 10, 190), (16, 4, 28), (7, 3, 11)])
def test_all_segments_but_the_last_run_twice(num, segments, forwards):
    """100 stages in 10 segments: 100 + 90 forwards; 7 in 3 (2, 2, 3): 7 + 4."""
    chain = unit_chain(num)
    schedule = segment_schedule(chain, equal_starts(num, segments))
    assert count_forwards(chain, schedule) == forwards


def test_sqrt_overhead_explains_the_papers_thirty_percent():
    """At b = 2 f, 100 stages in 10 segments cost 90 of 300 units more."""
    ones = [1] * 100
    chain = Chain.from_arrays(
        "chen", 1, forward_s=ones, backward_s=[2] * 100, output_bytes=ones, saved_bytes=[2] * 100
    )
    assert chen_sqrt(chain, ROOMY).overhead == pytest.approx(0.3)


def test_segment_peak_by_hand():
    """Two segments of two stages, a = 1, saved = 5 (r = 4), input 1.

    First pass: a0 and a2 stay; F3 keeps r3 r4 a3 a4. B3 runs with a0, a2, a3, a4, r3, r4, d4, d3:
    6 activations and gradients of 1 and 2 of 4, 14 bytes. B1 later: a0, a1, a2', r1, r2, d2, d1.
    """
    chain = Chain.from_arrays(
        "hand", 1, forward_s=[1] * 4, backward_s=[1] * 4, output_bytes=[1] * 4, saved_bytes=[5] * 4
    )
    simulation = simulate(chain, segment_schedule(chain, [0, 2]))
    assert (simulation.peak_bytes, simulation.peak_op) == (14, "B3")


@pytest.mark.parametrize(("num", "forwards"), [(16, 48), (64, 256), (256, 1280), (1024, 6144)])
def test_bisection_forwards(num, forwards):
    """T(n) = n/2 + 2 T(n/2), T(1) = 1 gives n (1 + k/2) at n = 2^k."""
    chain = unit_chain(num)
    schedule = bisection_schedule(chain, num.bit_length())
    assert count_forwards(chain, schedule) == forwards


def test_greedy_closes_a_segment_when_bytes_pass_the_threshold():
    """Bundles 9 1 1 1: b = 8 cuts after the first, b = 9 after the second."""
    chain = Chain.from_arrays(
        "uneven", 1, forward_s=[1] * 4, backward_s=[1] * 4, output_bytes=[1] * 4,
        saved_bytes=[9, 1, 1, 1],
    )  # fmt: skip
    assert greedy_starts(chain, 8) == [0, 1]
    assert greedy_starts(chain, 9) == [0, 2]
    assert greedy_starts(chain, 12) == [0]
