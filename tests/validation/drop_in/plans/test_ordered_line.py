"""Lines whose backwards run in any order: peaks by hand and by replay, choices, least budgets."""

from __future__ import annotations

from itertools import product

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.validation.drop_in.parts.part_line import CallInLine, PartCost, divide, peak_of
from schedsim.validation.drop_in.plans.ordered_line import OrderedLine, least_budget, plain_line
from schedsim.validation.drop_in.records.step_record import last_first
from tiers import examples

small = st.integers(0, 30)


@st.composite
def calls(draw):
    """Two to four calls; the first choice of each stores all."""
    made = []
    for _ in range(draw(st.integers(2, 4))):
        choices = [PartCost(n, draw(small), draw(small), draw(small), 1.0 + n) for n in range(3)]
        made.append(CallInLine(tuple(choices), 0, *(draw(small) for _ in range(4))))
    return tuple(made)


@st.composite
def orders(draw, num_calls):
    """Forwards in order, each backward somewhere behind its forward."""
    order, opened, following = [], [], 0
    while len(order) < 2 * num_calls:
        if following < num_calls and (not opened or draw(st.booleans())):
            order.append(following)
            opened.append(following)
            following += 1
        else:
            order.append(~opened.pop(draw(st.integers(0, len(opened) - 1))))
    return tuple(order)


@st.composite
def lines(draw):
    """A line in any order, some of whose calls may have one key."""
    made = draw(calls())
    if draw(st.booleans()):
        return OrderedLine(made, draw(orders(len(made))), tuple(range(len(made))))
    alike = (made[0],) * len(made)
    keys = tuple(draw(st.integers(0, 1)) for _ in made)
    return OrderedLine(alike, draw(orders(len(made))), keys)


def replayed(line, costs):
    """The peak, from the set of calls that keep something at each half."""
    most, opened = 0, set()
    for half in line.order:
        i = half if half >= 0 else ~half
        call, cost = line.calls[i], costs[i]
        kept = sum(costs[j].kept_bytes for j in opened - {i})
        if half >= 0:
            most = max(most, call.before_bytes + kept + cost.forward_bytes)
            most = max(most, call.before_bytes + kept + cost.kept_bytes + call.between_bytes)
            opened.add(i)
        else:
            most = max(most, call.backward_before_bytes + kept + cost.backward_bytes)
            most = max(most, kept + call.after_bytes)
            opened.remove(i)
    return most


def choices(line):
    """All ways to choose, one for each key."""
    for costs in product(*(call.choices for call in line.calls)):
        chosen = {}
        pairs = zip(line.keys, costs, strict=True)
        if all(chosen.setdefault(key, cost) == cost for key, cost in pairs):
            yield costs


@given(lines(), st.integers(1, 150))
@settings(max_examples=examples(150), deadline=None)
def test_what_is_chosen_fits_when_it_is_replayed(line, budget):
    """In the plain order it is the best choice; in any, one that all calls share is found."""
    ways = [(sum(c.time_s for c in way), way) for way in choices(line)]
    fitting = [time_s for time_s, way in ways if replayed(line, way) <= budget]
    found = line.divide(budget)
    if found is None:
        one = {tuple(c.choices[n] for c in line.calls) for n in range(3)}
        assert not fitting or not (line.is_plain or any(replayed(line, w) <= budget for w in one))
        return
    assert replayed(line, found.costs) == found.peak_bytes <= budget
    assert len(set(zip(line.keys, found.costs, strict=True))) == len(set(line.keys))
    assert found.time_s >= min(fitting)
    if line.is_plain:
        assert found.time_s == min(fitting)


@given(calls(), st.integers(1, 3))
@settings(max_examples=examples(40), deadline=None)
def test_the_least_budget_is_the_least_peak_of_all_choices(made, too_little):
    """Within 1 % of the budget that was too little: here, to the byte."""
    line = plain_line(made)
    peaks = [peak_of(made, costs) for costs in product(*(call.choices for call in made))]
    assert line.store_all_peak() == peaks[0]
    if min(peaks) > too_little:
        assert divide(made, too_little) is None
        assert least_budget(line, too_little) == min(peaks)


def test_first_in_first_out_keeps_most_in_the_first_call():
    """The last call waits longest for its backward, as the first does in the plain order."""
    much, little = PartCost(0, 8, 9, 10, 1.0), PartCost(1, 2, 9, 12, 1.5)
    made = (CallInLine((much, little), 0, 0, 1, 0),) * 2
    numbers = {}
    for order in (last_first(2), (0, 1, ~0, ~1)):
        plan = OrderedLine(made, order, (0, 1)).divide(17)
        numbers[order] = [cost.number for cost in plan.costs]
    assert list(numbers.values()) == [[1, 0], [0, 1]]


def test_the_least_budget_of_large_steps_is_found_to_a_hundredth():
    """A few divisions of the line: it is a hint, and accepted when typed in."""
    cost = PartCost(0, 0, 10**12 + 7, 0, 1.0)
    line = plain_line([CallInLine((cost,), 0, 0, 0, 0)])
    least = least_budget(line, 10**11)
    assert 10**12 + 7 <= least <= 10**12 + 7 + 10**9
    assert line.divide(least) is not None
