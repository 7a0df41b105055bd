"""What is there beside steps of each kind, which their first part tells."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from schedsim.validation.drop_in.plans.resident_by_kind import Before, ResidentByKind
from schedsim.validation.drop_in.records.step_record import StepKind


def test_a_kind_leaves_no_room_for_what_is_beside_another():
    """Their lasting bytes are one number, whichever kind has seen it."""
    resident = ResidentByKind()
    assert resident.begin(StepKind(0), Before(100, 50, 3)) is None
    assert resident.begin(StepKind(1), Before(120, 5)) is None
    assert resident.now == resident.of(StepKind(1)) == Before(120, 5)
    assert resident.of(StepKind(0)) == Before(120, 50, 3)
    assert resident.of(StepKind(7)) == Before(120, 50, 3)  # never seen to begin: the most of all
    assert resident.most_bytes == 170
    resident.forget_passing()
    assert resident.of(StepKind(0)).passing_bytes == 0


def test_what_grows_is_told_against_what_was_planned_for():
    """A kind whose plans were made beside more has not grown."""
    resident = ResidentByKind()
    resident.begin(StepKind(0), Before(100, 50))
    resident.begin(StepKind(1), Before(100, 5))
    resident.plan()
    assert resident.begin(StepKind(1), Before(100, 5)) == 0
    assert resident.begin(StepKind(0), Before(90, 40)) == 0
    assert resident.begin(StepKind(1), Before(130, 6, 2)) == 33
    assert (
        resident.begin(StepKind(0), Before(100, 50)) == 30
    )  # an optimizer's states are beside all
    resident.plan(StepKind(0))
    assert resident.begin(StepKind(0), Before(130, 50)) == 0
    assert resident.begin(StepKind(1), Before(100, 0)) == 33


def test_the_room_of_the_allocator_is_beside_all():
    """It is no growth: plans are made anew where it changes."""
    resident = ResidentByKind()
    resident.begin(StepKind(0), Before(100, 50))
    resident.plan()
    resident.room_bytes = 8
    assert resident.now.resident_bytes == 158
    assert resident.begin(StepKind(0), Before(100, 50)) == 0
    assert resident.most_bytes == 150


def test_what_a_rehearsal_has_seen_is_forgotten():
    resident = ResidentByKind()
    resident.raise_present(10)  # no step has come
    assert resident.now == Before(0, 0)
    resident.begin(StepKind(0), Before(100, 50))
    before = resident.saved()
    resident.begin(StepKind(1), Before(200, 0))
    resident.raise_present(260)
    resident.raise_present(5)
    assert resident.now.resident_bytes == 260
    resident.restore(before)
    assert resident.now == resident.of(StepKind(0)) == Before(100, 50)
