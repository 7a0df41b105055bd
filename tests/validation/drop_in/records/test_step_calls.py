"""The calls of one step and their halves."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.parts.output_uses import results_of  # noqa: E402
from schedsim.validation.drop_in.records.step_calls import Forgotten, PartCall, StepCalls  # noqa: E402
from schedsim.validation.torch_private.storage_refs import weakly  # noqa: E402

PART, OTHER = (SimpleNamespace(outputs=SimpleNamespace(unread=lambda: frozenset({1}))),) * 2


def called(header, outputs=(), part=PART):
    found = results_of(outputs)
    place = header.data_ptr()
    return PartCall((0, 0), part, (), 0, 0, 0, header=weakly(header), place=place, results=found)


def test_a_call_is_open_until_its_backward_has_run_or_what_it_saved_is_gone():
    one, other = torch.zeros(1), torch.zeros(1)
    calls = StepCalls([called(one), called(other)])
    assert calls.opened == calls.rows
    assert not calls.is_done
    calls.rows[0].is_done = True
    assert calls.opened == calls.rows[1:]
    del other
    assert not calls.is_open
    assert not calls.is_done


def test_keys_count_the_open_calls_of_a_part():
    header = torch.zeros(1)
    calls = StepCalls([called(header)])
    assert calls.key_of(3, PART) == (3, 1)
    assert calls.key_of(3, object()) == (3, 0)
    calls.rows[0].is_done = True
    assert calls.key_of(3, PART) == (3, 0)


def test_a_place_that_two_calls_have_had_is_of_the_one_that_is_open():
    header = torch.zeros(1)
    calls = StepCalls([called(header), called(header)])
    assert calls.number_of(header) == 1
    calls.rows[1].is_done = True
    assert calls.number_of(header) == 0
    calls.rows[0].is_done = True
    assert calls.number_of(header) == -1


def test_outputs_of_open_calls_and_what_was_given_are_shared():
    header, made, given, new = (torch.zeros(size) for size in (1, 10, 20, 40))
    calls = StepCalls([called(header, [made])])
    places = {given.untyped_storage().data_ptr()}
    assert calls.shared_bytes([made, [given, new]], places) == 120
    calls.rows[0].is_done = True
    assert calls.shared_bytes([made, [given, new]], places) == 80


def test_bytes_of_outputs_that_are_gone_by_whether_the_part_reads_them():
    header, read, unread = torch.zeros(1), torch.zeros(10), torch.zeros(20)
    call = called(header, [read, unread])
    call.gone = frozenset({0, 1})
    assert call.gone_bytes(read_inside=True) == 40
    assert call.gone_bytes(read_inside=False) == 80
    call.gone = frozenset()
    assert call.gone_bytes(read_inside=True) == 0


def test_a_copy_grows_apart():
    calls = StepCalls([called(torch.zeros(1))], [0])
    copied = calls.copy()
    copied.rows.clear()
    copied.order.append(~0)
    assert (len(calls.rows), calls.order) == (1, [0])


@pytest.mark.slow
def test_what_lies_in_a_cycle_is_freed_once_a_later_call_is_done():
    class Box:
        """Holds itself."""

    first, second = Box(), torch.zeros(1)
    first.header, first.itself = torch.zeros(1), first
    calls = StepCalls([called(first.header), called(second)])
    gc.disable()
    try:
        del first
        Forgotten().free(calls)
        assert calls.rows[0].is_open  # its own backward may come: the later one has not run
        calls.rows[1].is_done = True
        Forgotten().free(calls)
        assert not calls.rows[0].is_open
    finally:
        gc.enable()


def test_a_call_that_stays_open_through_many_steps_is_left_behind():
    """Not while another call is open that is younger: its step may still be running."""
    held, young = torch.zeros(1), torch.zeros(1)
    calls = StepCalls([called(held)])
    for _ in range(15):
        calls.rows.append(called(young))
        calls.rows[-1].is_done = True
    assert calls.left_behind() == []
    calls.rows.append(called(young))
    assert calls.left_behind() == []
    calls.rows[-1].is_done = True
    assert calls.left_behind() == calls.rows[:1]
    calls.rows.append(called(young))
    assert calls.left_behind() == []
