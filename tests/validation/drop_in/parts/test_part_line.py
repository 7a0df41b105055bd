"""The dynamic program over a line of parts, against every choice."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.validation.drop_in.parts.part_line import CallInLine, PartCost, divide, peak_of
from tiers import examples

small = st.integers(0, 12)


@st.composite
def lines(draw):
    """A few calls with a few choices each."""
    calls = []
    for _ in range(draw(st.integers(1, 4))):
        choices = []
        for number in range(draw(st.integers(1, 3))):
            kept = draw(small)
            choices.append(
                PartCost(number, kept, draw(small), kept + draw(small), draw(st.integers(1, 9)))
            )
        calls.append(
            CallInLine(
                tuple(choices), draw(st.integers(0, 2)), draw(small), draw(small), draw(small)
            )
        )
    return calls


@given(lines(), st.integers(0, 80))
@settings(max_examples=examples(200), deadline=None)
def test_no_choice_is_quicker_within_the_budget(calls, budget):
    """The least time of all choices that fit, or nothing where none does."""
    fitting = [
        sum(cost.time_s for cost in costs)
        for costs in product(*(call.choices for call in calls))
        if peak_of(calls, costs) <= budget
    ]
    found = divide(calls, budget)
    assert (found is None) == (not fitting)
    if found is not None:
        assert found.time_s == min(fitting)
        assert found.peak_bytes == peak_of(calls, found.costs) <= budget


def test_many_states_are_thinned_upwards():
    """What is merged is rounded up: the peak said is never too low."""
    choices = tuple(PartCost(k, 1 << k, 1, (1 << k) + 1, 40.0 - k) for k in range(14))
    calls = [CallInLine(choices, 0, 0, 0, 0)] * 3
    budget = 3 << 12
    found = divide(calls, budget)
    assert found is not None
    assert peak_of(calls, found.costs) <= budget
