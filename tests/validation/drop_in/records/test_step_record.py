"""What the code around parts takes at other sizes than those at which it was measured."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import given
from hypothesis import strategies as st
from part_sizes_by_hand import PartByHand
from schedsim.validation.drop_in.parts.part_line import PartCost
from schedsim.validation.drop_in.records.outside_code import OutsideBytes
from schedsim.validation.drop_in.records.step_record import (
    StepRecord,
    bytes_between_halves,
    scaled_bytes,
    single_peak_bytes,
)

PART = PartByHand(output=4, given=1, inputs=2)
"""Bytes for each unit of its one open size."""


def record(left, most, size=10):
    """A step of one part, measured at `size`."""
    after = OutsideBytes(most=most, left=left)
    return StepRecord(((0, 0),), ((size,),), (0,), (after,), (OutsideBytes(0, 0),))


@given(st.integers(0, 10**9), st.integers(1, 10**6), st.integers(0, 10**7))
def test_code_takes_more_for_larger_inputs_and_no_less_for_smaller(num_bytes, measured, now):
    """In proportion, rounded up: never below what was measured."""
    found = scaled_bytes(num_bytes, measured, now)
    assert found >= num_bytes
    if now > measured:
        assert 0 <= found * measured - num_bytes * now < measured
    else:
        assert found == num_bytes


def test_the_code_of_a_part_without_outputs_is_scaled_too():
    """Nothing is divided by zero."""
    assert scaled_bytes(3, 0, 2) == 6


@pytest.mark.parametrize(
    ("left", "most", "size", "expected"),
    [
        (10, 10, 10, (0, 0)),  # the gradients given are all that there is: they count elsewhere
        (14, 40, 10, (4, 26)),
        (14, 40, 20, (8, 52)),
        (14, 40, 5, (4, 26)),
        (4, 8, 10, (0, 0)),
    ],
)
def test_what_the_code_between_the_halves_holds_and_takes(left, most, size, expected):
    """Beside the gradients given, which are 10 bytes at the size measured."""
    assert bytes_between_halves(record(left, most), PART, (size,)) == expected


def test_the_peak_is_in_a_half_or_between_them():
    """Beside what is resident; what the caller still holds is there in all three."""
    step = record(14, 40)
    for cost, expected in (
        (PartCost(0, 100, 500, 300, 1.0), 4 + 500),
        (PartCost(0, 100, 50, 300, 1.0), 4 + 300),
        (PartCost(0, 100, 50, 120, 1.0), 4 + 100 + 20 + 10 + 26),
    ):
        assert single_peak_bytes(step, PART, (10,), cost) == expected
