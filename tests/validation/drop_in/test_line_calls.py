"""The calls of a step of several parts: what each finds around it, and the least budget."""

from __future__ import annotations

from itertools import product

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st
from part_sizes_by_hand import PartByHand
from schedsim.validation.drop_in.line_calls import (
    AroundCall,
    bytes_around_calls,
    call_in_line,
    least_budget,
    store_all_peak,
)
from schedsim.validation.drop_in.outside_code import OutsideBytes
from schedsim.validation.drop_in.part_line import PartCost, divide, peak_of
from schedsim.validation.drop_in.step_record import StepRecord
from tiers import examples

FIRST = PartByHand(output=4, given=0, inputs=2, gradient_bytes=30)
LAST = PartByHand(output=2, given=1, inputs=4, gradient_bytes=50, input_gradients=4)
RECORD = StepRecord(
    keys=((0, 0), (1, 0)),
    bindings=((10,), (10,)),
    shared_bytes=(20, 99),
    after_forward=(OutsideBytes(most=16, left=6), OutsideBytes(most=40, left=15)),
    after_backward=(OutsideBytes(most=9, left=7), OutsideBytes(most=11, left=3)),
)


def test_what_two_calls_find_around_them():
    """At the sizes measured: each number by hand."""
    first, last = bytes_around_calls(RECORD, (FIRST, LAST), ((10,), (10,)), 1000)
    # The last call's gradients and what its backward leaves are there before the first's backward.
    # The step's input is there in both calls, and the first one reads it.
    assert first == AroundCall(20, before=1020, between=16, later=53, at_end=5, behind=92)
    # Its input is 40 bytes, so that no more of it is shared; the gradients given are 10 bytes.
    assert last == AroundCall(40, before=1026, between=40, later=0, at_end=5, behind=101)


def test_code_around_larger_calls_takes_more():
    """Twice the sizes, twice what the code takes, the gradients of parameters apart."""
    first, last = bytes_around_calls(RECORD, (FIRST, LAST), ((20,), (20,)), 1000)
    assert first == AroundCall(40, before=1040, between=32, later=56, at_end=10, behind=104)
    assert last == AroundCall(80, before=1052, between=80, later=0, at_end=10, behind=152)


def test_a_call_in_its_place():
    """Its backward begins beside what later ones left and what the code at the end holds."""
    cost = PartCost(0, 8, 9, 10, 1.0)
    around = AroundCall(shared=2, before=100, between=7, later=20, at_end=3, behind=4)
    call = call_in_line((cost,), around)
    assert call.peak_bytes(5, cost) == max(100 + 3 + 9, 100 + 5 + 8 + 7, 123 + 3 + 10, 103 + 5 + 4)
    call = call_in_line((cost,), around._replace(behind=70))
    assert call.peak_bytes(5, cost) == 103 + 5 + 70


small = st.integers(0, 30)


@st.composite
def calls(draw):
    """Two or three calls; the first choice of each stores all."""
    made = []
    for _ in range(draw(st.integers(2, 3))):
        choices = [PartCost(n, draw(small), draw(small), draw(small), 1.0 + n) for n in range(3)]
        made.append(call_in_line(tuple(choices), AroundCall(0, *(draw(small) for _ in range(4)))))
    return made


@given(calls(), st.integers(1, 3))
@settings(max_examples=examples(40), deadline=None)
def test_the_least_budget_is_the_least_peak_of_all_choices(line, too_little):
    """Within 1 % of the budget that was too little: here, to the byte."""
    peaks = [peak_of(line, costs) for costs in product(*(call.choices for call in line))]
    assert store_all_peak(line) == peaks[0]
    if min(peaks) > too_little:
        assert divide(line, too_little) is None
        assert least_budget(line, too_little) == min(peaks)


def test_the_least_budget_of_large_steps_is_found_to_a_hundredth():
    """A few divisions of the line: it is a hint, and accepted when typed in."""
    cost = PartCost(0, 0, 10**12 + 7, 0, 1.0)
    line = [call_in_line((cost,), AroundCall(0, 0, 0, 0, 0))]
    least = least_budget(line, 10**11)
    assert 10**12 + 7 <= least <= 10**12 + 7 + 10**9
    assert divide(line, least) is not None
