"""Checkpointing by bisection: halve the interval, reverse the right half, then the left."""

from __future__ import annotations

from chains import unit_chain
from schedsim.algorithms.chains.bisection import bisection_schedule

from schedsim import simulate


def test_bisection_holds_k_checkpoints():
    """At full depth on 2^k units, k states besides the input are live at the most.

    The peak is those k, the input, and around the turn one output and one gradient more.
    """
    for k in range(2, 8):
        chain = unit_chain(2**k)
        assert simulate(chain, bisection_schedule(chain, k)).peak_bytes <= k + 4
