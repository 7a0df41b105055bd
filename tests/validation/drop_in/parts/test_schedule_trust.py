"""Which schedules may run, and which are compared before."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from schedsim.validation.drop_in.parts.schedule_trust import ScheduleTrust


def test_a_schedule_is_compared_at_two_sizes():
    """Before it runs, and at another size that comes again; with a trusted one that fits."""
    trust, seen = ScheduleTrust(), []
    trust.trust(2, (7,))

    def compare(one, other):
        seen.append((one, other))
        return "the loss is another" if one == 3 else None

    assert trust.settle(1, (8,), [1], compare) == (1, None)
    assert trust.is_new(1, (8,))
    assert trust.settle(1, (8,), [1, 2], compare) == (1, None)
    assert not trust.is_new(1, (8,))
    assert not trust.is_new(1, (9,)), "a size that is new does not wait"
    trust.runs(1, (9,))
    assert trust.num_sizes_uncompared == 1
    trust.meet((9,))
    assert trust.is_new(1, (9,))
    trust.settle(1, (9,), [2], compare)
    assert trust.num_sizes_uncompared == 0
    trust.meet((10,))
    assert not trust.is_new(1, (10,))
    assert trust.compared_at == [(7,), (8,), (9,)]
    assert trust.settle(3, (8,), [4, 1], compare) == (1, "the loss is another")
    assert trust.refused == {3: 1}
    assert seen == [(1, 2), (1, 2), (3, 1)]
    assert trust.settle(5, (8,), [4], compare) == (5, None)
    trust.meet((8,))
    assert not trust.is_new(5, (8,)), "two new ones that agree are not compared in every step"
    assert trust.is_new(5, (9,))
    trust.refused.clear()
    assert trust.settle(3, (8,), [4], compare) == (2, "the loss is another")


def test_a_schedule_that_ran_uncompared_is_told_of():
    """Where it turns out wrong at a size that comes again, steps have run by it."""
    trust = ScheduleTrust()
    trust.trust(0, (8,))
    trust.settle(1, (8,), [0], lambda *_: None)
    trust.runs(1, (9,))
    number, wrong = trust.settle(1, (9,), [0], lambda *_: "the loss is another")
    assert number == 0
    assert wrong.startswith("the loss is another (steps of 1 sizes ran by it")


def test_schedules_are_compared_ahead_of_need():
    """In the step that made them, or one a step where sizes come again; at two sizes."""
    trust = ScheduleTrust()
    trust.trust(0, (8,))
    trust.expect(0, now=True)
    assert not trust.expects, "it was compared"
    for number in (1, 2, 3):
        trust.expect(number, now=True)
    trust.expect(4, now=False)
    assert trust.expected((8,), fitting=[1, 2, 4]) == [1, 2]
    for number in (1, 2):
        trust.settle(number, (8,), [0], lambda *_: None)
    assert trust.expected((8,), fitting=[1, 2, 3, 4]) == []
    trust.meet((8,))
    assert trust.expected((8,), fitting=[1, 2, 3, 4]) == [3]
    trust.refused[3] = 0
    assert trust.expected((8,), fitting=[1, 2, 3, 4]) == [4]
    assert trust.expected((9,), fitting=[1, 2, 3, 4]) == []
    trust.meet((9,))
    assert trust.expected((9,), fitting=[1, 2]) == [1]


def test_a_step_that_has_nothing_to_compare_is_known_before_anything_is_looked_for():
    """One of new sizes that made no schedule, and one at whose sizes all were compared."""
    trust = ScheduleTrust()
    trust.trust(0, (8,))
    trust.expect(1, now=False)
    assert not trust.may_compare((8,))
    trust.meet((8,))
    assert trust.may_compare((8,))
    trust.settle(1, (8,), [0], lambda *_: None)
    assert not trust.may_compare((8,))
    trust.expect(2, now=True)
    assert trust.may_compare((9,))


def test_new_sizes_run_by_what_was_compared():
    """A few times: where no sizes come twice, some step has to compare."""
    trust = ScheduleTrust()
    trust.trust(0, (8,))
    trust.meet((8,))
    assert not trust.avoids(0, (9,))
    assert not trust.avoids(1, (8,))
    avoided = [trust.avoids(1, (size,)) for size in range(10, 30)]
    assert avoided[0]
    assert not avoided[-1]
