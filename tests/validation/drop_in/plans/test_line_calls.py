"""The calls of a step of several parts: what each finds around it, and the least budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from part_sizes_by_hand import PartByHand
from schedsim.validation.drop_in.parts.part_line import CallInLine, PartCost
from schedsim.validation.drop_in.plans.line_calls import AroundCall, bytes_around_calls
from schedsim.validation.drop_in.records.held_results import Waiting
from schedsim.validation.drop_in.records.outside_code import OutsideBytes
from schedsim.validation.drop_in.records.step_record import StepRecord

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
    assert first == AroundCall(20, before=1020, between=16, backward_before=1078, after=1117)
    # Its input is 40 bytes, so that no more of it is shared; the gradients given are 10 bytes.
    assert last == AroundCall(40, before=1026, between=40, backward_before=1031, after=1132)


def test_code_around_larger_calls_takes_more():
    """Twice the sizes, twice what the code takes, the gradients of parameters apart."""
    first, last = bytes_around_calls(RECORD, (FIRST, LAST), ((20,), (20,)), 1000)
    assert first == AroundCall(40, before=1040, between=32, backward_before=1106, after=1154)
    assert last == AroundCall(80, before=1052, between=80, backward_before=1062, after=1214)


def test_rows_that_code_chooses_grow_where_the_outputs_before_do_not():
    """Of 40 bytes of inputs the code has made 30, of 80 bytes 70: it holds and takes 40 more."""
    record = replace(RECORD, shared_bytes=(20, 10))
    first, last = bytes_around_calls(record, (FIRST, LAST), ((10,), (20,)), 1000)
    assert (first.before, first.between) == (1020, 16 + 40)
    assert last.before == 1020 + 6 + 40


def test_a_call_in_its_place():
    """Its backward begins beside what later ones left and what the code at the end holds."""
    cost = PartCost(0, 8, 9, 10, 1.0)
    around = AroundCall(shared=2, before=100, between=7, backward_before=123, after=107)
    call = CallInLine((cost,), *around)
    assert call.peak_bytes(5, cost) == max(100 + 3 + 9, 100 + 5 + 8 + 7, 123 + 3 + 10, 107 + 5)
    call = CallInLine((cost,), *around._replace(after=173))
    assert call.peak_bytes(5, cost) == 173 + 5


def test_micro_batches_that_run_first_in_first_out():
    """At the first backward all that the other call holds is there; gradients are made once."""
    record = replace(RECORD, keys=((0, 0), (0, 1)), order=(0, 1, ~0, ~1), trained=(7, 7))
    first, last = bytes_around_calls(record, (FIRST, FIRST), ((10,), (10,)), 1000)
    # What the code after the first forward holds, 6 bytes, goes with the first backward.
    assert (first.before, last.before) == (1020, 1026)
    # No gradient is given, so that 15 bytes are held at the end.
    assert first.backward_before == 1020 + 15
    assert first.after == 1020 + 15 + 30 + 9
    assert last.backward_before == 1020 + 15 + 30 + 7
    assert last.after == 1020 + 15 + 30 + 7 + 11


def test_calls_that_take_turns():
    """Each forward finds the gradients of earlier backwards."""
    record = replace(RECORD, keys=((0, 0), (0, 0)), order=(0, ~0, 1, ~1), trained=(7, 8))
    _, last = bytes_around_calls(record, (FIRST, FIRST), ((10,), (10,)), 1000)
    assert last.before == 1020 + 30 + 7
    assert last.backward_before == 1020 + 30 + 7 + 15


def test_a_gradient_that_waits_is_there_during_the_backward_and_the_code_after_it():
    """At twice the sizes it has twice the bytes."""
    waiting = replace(RECORD, waiting=(Waiting(half=~0, call=1, num_bytes=200),))
    for size, grown in (((10,), 200), ((20,), 400)):
        sizes = (size, size)
        first, last = bytes_around_calls(waiting, (FIRST, LAST), sizes, 1000)
        without = bytes_around_calls(RECORD, (FIRST, LAST), sizes, 1000)
        assert first.backward_before == without[0].backward_before + grown
        assert first.after == without[0].after + grown
        assert (first.before, last) == (without[0].before, without[1])
