"""Which steps of a loop are measured."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from schedsim.validation.drop_in.parts.output_uses import OutputUse
from schedsim.validation.drop_in.records.record_turns import RecordTurns

HELD, DROPPED = ((0, 0), OutputUse()), ((0, 0), OutputUse(frozenset({0})))


def measured(uses):
    """Numbers of the measured steps of a loop, in each of which the loop uses its outputs so."""
    turns, found = RecordTurns(), []
    for number, use in enumerate(uses):
        if turns.is_missing and turns.may_look(len(found)):
            turns.looks()
            found.append(number)
            turns.learn([use], alone=False)
        else:
            turns.see(use)
        turns.step_ends()
    return found


def test_a_loop_of_one_kind_of_step_is_measured_once():
    assert measured([HELD] * 20) == [0]


@pytest.mark.parametrize("period", [2, 3, 4])
def test_a_rare_use_is_met_by_a_later_record(period):
    """After each time it came the record waits a step longer, until it meets such a step."""
    uses = [DROPPED if i % period == period - 1 else HELD for i in range(40)]
    found = measured(uses)
    assert DROPPED in [uses[number] for number in found]
    assert len(found) <= 1 + period


def test_a_use_that_no_record_meets_is_given_up():
    """As one that comes at growing distances: the loop is not measured for ever."""
    rare = {2**i for i in range(1, 12)}
    assert len(measured([DROPPED if i in rare else HELD for i in range(4000)])) <= 9


@pytest.mark.parametrize("period", [2, 3, 4])
def test_a_record_that_meets_nothing_is_followed_by_one_of_another_step(period):
    """Forwards without a backward come between; a record ends in the step after its own."""
    turns, is_free = RecordTurns(), True
    for number in range(40):
        if not is_free:
            is_free = True
        elif turns.is_missing and turns.may_look(0):
            turns.looks()
            if number % period == period - 1:
                return
            turns.misses()
            is_free = False
        turns.step_ends()
    pytest.fail("no step with a backward was measured")


def test_the_record_of_another_model_is_waited_for_a_few_steps():
    turns = RecordTurns()
    assert [turns.is_blocked() for _ in range(9)] == [False] * 7 + [True, False]
    turns.looks()
    assert not any(turns.is_blocked() for _ in range(7))


def test_a_record_that_replaces_another_has_met_its_own_uses_alone():
    turns = RecordTurns()
    turns.learn([HELD], alone=False)
    turns.learn([DROPPED], alone=True)
    turns.looks()
    turns.see(DROPPED)
    turns.step_ends()
    assert not turns.is_missing
    turns.see(HELD)
    turns.step_ends()
    assert turns.is_missing


def test_steps_are_looked_at_for_passing_results_a_few_times():
    turns = RecordTurns()
    assert not turns.looks_at_passing(False)
    assert [turns.looks_at_passing(True) for _ in range(6)] == [True] * 4 + [False] * 2


def test_kinds_of_steps_and_looks_are_bounded():
    turns = RecordTurns()
    assert not turns.may_look(8)
    for _ in range(32):
        assert turns.may_look(0)
        turns.looks()
    assert not turns.may_look(0)


def test_a_call_that_no_record_has_met_is_waited_for():
    """Of two kinds of steps in turns, the record that begins at once meets the other kind."""
    turns, found = RecordTurns(), []
    for number in range(12):
        kind = number % 2
        if turns.is_missing:
            turns.looks()
            found.append(kind)
        elif kind not in found:
            turns.see(((0, kind), None))
        turns.step_ends()
    assert set(found) == {0, 1}
