"""The ops of single blocks, run as a step runs them, with their bytes measured."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from schedsim.validation.block_level.bench import Counts  # noqa: E402

counts = st.builds(Counts, *(st.integers(0, 100) for _ in range(4)))


@given(counts, st.lists(counts, max_size=4), st.permutations(range(4)))
def test_the_least_of_each_count_is_the_true_one(true, late, places):
    """Where each was read once without anything late, whatever is late in the others.

    Reading k has all but one count late: the k-th of `places` is exact.
    """
    rows = [list(astuple(true)) for _ in places]
    for row, exact in zip(rows, places, strict=True):
        for at in range(4):
            row[at] += 0 if at == exact else 7
    more = [[a + b for a, b in zip(astuple(true), astuple(one), strict=True)] for one in late]
    readings = [Counts(*row) for row in [*rows, *more]]
    assert Counts.least(readings) == true
    assert Counts.are_sure([*readings, true, true])


def test_counts_read_once_are_not_sure():
    """Two readings agree on the first three counts; the last is less in one of them."""
    one = Counts(5, 6, 7, 8)
    assert Counts.are_sure([one, one])
    assert not Counts.are_sure([one, replace(one, backward_peak_bytes=7)])
    assert not Counts.are_sure([one])
