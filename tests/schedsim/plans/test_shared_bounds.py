"""Gaps to the best bound of several plans, within the classes that bounds speak of."""

from __future__ import annotations

from dataclasses import replace

from schedsim import Chain, plan
from schedsim.plans.scope import ANY_SCHEDULE, FIXED_ORDER, PERSISTENT
from schedsim.plans.shared_bounds import SharedBound

CHAIN = Chain.from_arrays(
    "four", 1, forward_s=[1] * 4, backward_s=[1] * 4, output_bytes=[1] * 4, saved_bytes=[1] * 4
)


def told(makespan_s, bound_s, scope):
    """A plan with these numbers."""
    made = plan(CHAIN, 6, "periodic")
    gap = makespan_s / bound_s - 1.0
    return replace(made, makespan_s=makespan_s, lower_bound_s=bound_s, bound_scope=scope, gap=gap)


def test_the_same_time_has_the_same_gap():
    """A heuristic at the time of a proven optimum lies at no distance from it."""
    plans = [told(10.0, 10.0, PERSISTENT), told(10.0, 8.0, ANY_SCHEDULE)]
    shared = SharedBound.of(plans)
    assert (shared.bound_s, shared.scope) == (10.0, PERSISTENT)
    assert [shared.gap(one) for one in plans] == [0.0, 0.0]


def test_what_beats_a_narrower_bound_is_held_against_the_wider():
    """A schedule of 9 s is not in the class whose bound is 10 s: 9 / 8 - 1 = 0.125 remains."""
    plans = [told(10.0, 10.0, PERSISTENT), told(9.0, 8.0, ANY_SCHEDULE)]
    assert SharedBound.of(plans).gap(plans[1]) == 0.125


def test_of_classes_within_each_other_the_widest_speaks():
    """A bound over persistent schedules is none over the fixed order: that over the latter is."""
    plans = [
        told(12.0, 12.0, PERSISTENT),
        told(11.0, 10.0, FIXED_ORDER),
        told(12.0, 8.0, ANY_SCHEDULE),
    ]
    shared = SharedBound.of(plans)
    assert (shared.bound_s, shared.scope) == (10.0, FIXED_ORDER)
    assert shared.gap(plans[0]) == 0.0  # its own bound is better
    assert round(shared.gap(plans[2]), 9) == 0.2
