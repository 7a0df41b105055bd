"""One budget for the calls of a step that gathers parameters, planned from what was read."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.drop_in.drop_in_options import DropInOptions
from schedsim.validation.drop_in.parts.part_line import PartCost
from schedsim.validation.drop_in.plans import gathered_plans
from schedsim.validation.drop_in.plans.gathered_calls import CallLevels, GatheredRecord, Mode
from schedsim.validation.drop_in.plans.gathered_plans import GatheredPlans

import schedsim

MUCH, LITTLE = PartCost(0, 80, 90, 100, 1.0), PartCost(1, 20, 90, 120, 1.5)
KEYS = ((0, 0), (0, 1))
WHOLE = Mode()
AROUND = CallLevels(50, 60, 50, 40)


def plans(budget, monkeypatch):
    """Of a part with two schedules."""
    monkeypatch.setattr(GatheredPlans, "_choices_of", lambda self, index: (MUCH, LITTLE))
    return GatheredPlans(DropInOptions(budget=budget), [part()])


def part(small=None, is_small=False):
    """A part, which may be one in small groups, or be put in them, once."""
    runs = []

    def in_smaller_groups():
        runs.append(small)
        return small if len(runs) == 1 else None

    return SimpleNamespace(
        trust=SimpleNamespace(refused={}),
        mark=lambda number: ~number if is_small else number,
        given_bytes=lambda: 30,
        in_smaller_groups=in_smaller_groups,
        runs_as=lambda part: runs.clear(),
        uses_as=lambda other: None,
    )


def a_plan():
    """The plan of some part, which a refusal changes."""
    chain = schedsim.Chain.from_arrays(
        name="one", input_bytes=1, forward_s=[1], backward_s=[1], output_bytes=[1], saved_bytes=[1]
    )
    return schedsim.plan(chain, "100%")


def record(numbers, levels=(AROUND, AROUND), mode=WHOLE, passing=0):
    """A reading of a step of two calls."""
    return GatheredRecord(KEYS, numbers, mode, (0, 0), levels, passing)


def test_the_first_steps_keep_least_until_the_least_was_read_twice(monkeypatch):
    """Then the budget is divided, and the step is read again by its new schedules."""
    made = plans(1000 + 230, monkeypatch)
    made.begin(1000)
    assert made.number_for(KEYS[0]) == 1
    assert made.wants(WHOLE)
    noisy = (AROUND, AROUND._replace(after=99))
    made.learn(record((1, 1), noisy))
    made.begin(1000)
    assert made.peak_bytes is None  # 99 was read once
    made.learn(record((1, 1)))
    assert made.wants(WHOLE)
    made.learn(record((1, 1)))
    made.begin(1000)
    # Both keeping much: 50 + 80 + 100 = 230 above what is resident in the second backward.
    assert made.numbers == {KEYS[0]: 0, KEYS[1]: 0}
    assert made.peak_bytes == 1230
    assert made.wants(WHOLE)  # by these schedules it was not read
    assert made.store_all_bytes(KEYS) == 160


def test_steps_of_other_graphs_are_read_when_they_come_again(monkeypatch):
    """As of a last batch that is smaller: some times, as it may come no more."""
    made = plans(1000 + 230, monkeypatch)
    made.begin(1000)
    for _ in range(2):
        made.learn(record((1, 1)))
    made.begin(1000)
    for _ in range(2):
        made.learn(record((0, 0)))
    assert not made.wants(WHOLE)
    made.saw(KEYS, WHOLE)
    assert not made.wants(WHOLE)
    made.saw(KEYS[:1], WHOLE)
    assert made.wants(WHOLE)
    num_recorded = 0
    while made.wants(WHOLE):
        made.recorded()
        num_recorded += 1
    assert num_recorded == gathered_plans._PATIENCE
    made.saw(KEYS[:1], WHOLE)
    assert not made.wants(WHOLE)
    made.saw((*KEYS, (0, 2)), WHOLE)  # another kind
    assert made.wants(WHOLE)


def test_what_is_read_by_the_new_schedules_counts(monkeypatch):
    """A tensor that the code around holds only then leads to another division; both are known."""
    made = plans(1000 + 230, monkeypatch)
    made.begin(1000)
    for _ in range(2):
        made.learn(record((1, 1)))
    made.begin(1000)
    higher = (AROUND, AROUND._replace(backward=55))
    for _ in range(2):
        made.learn(record((0, 0), higher))
    made.begin(1000)
    assert sorted(made.numbers.values()) == [0, 1]
    # Of steps by other schedules the most counts: 55 + 20 + 100, or 55 + 80 + 120 above 1000.
    assert made.peak_bytes <= 1230


def test_a_step_with_gradients_counts_them(monkeypatch):
    """Steps that find gradients are steps of their own; the schedules fit both."""
    made = plans(1000 + 230, monkeypatch)
    made.begin(1000)
    for passing in (0, 50):
        mode = Mode(finds_gradients=passing > 0)
        assert made.wants(mode)
        for _ in range(2):
            made.learn(record((1, 1), mode=mode, passing=passing))
    made.begin(1000)
    assert made.numbers == {KEYS[0]: 1, KEYS[1]: 0}
    assert made.peak_bytes == 1000 + 50 + 50 + 20 + 100


def test_more_that_is_resident_is_planned_for_anew(monkeypatch):
    """The optimizer's state comes with its first step; what does not fit names what would."""
    made = plans(1000 + 230, monkeypatch)
    made.plan = a_plan()
    for _ in range(2):
        made.learn(record((1, 1)))
    made.begin(1000)
    made.begin(1050)
    assert made.numbers == {KEYS[0]: 1, KEYS[1]: 0}
    with pytest.raises(schedsim.InfeasibleBudgetError, match="a step of 2 parts does not fit"):
        made.begin(1150)


def test_a_share_is_of_the_step_that_recomputes_nothing(monkeypatch):
    """As read: 1230 bytes; of noise without end, a number of readings is enough."""
    made = plans("100%", monkeypatch)
    made.begin(1000)
    for i in range(gathered_plans._MOST_READINGS):
        around = [AROUND._replace(forward=50 - i), AROUND._replace(between=60 - i)]
        made.learn(record((1, 1), tuple(around if i % 2 else reversed(around))))
    made.begin(1000)
    assert made.budget_bytes == 1230


def test_a_schedule_that_is_another_step_is_left_out(monkeypatch):
    """The one that keeps much: all calls keep little then."""
    made = plans(1000 + 230, monkeypatch)
    for _ in range(2):
        made.learn(record((1, 1)))
    made.begin(1000)
    made._parts[0].trust.refused[0] = 1
    made.refuse()
    made.begin(1000)
    assert set(made.numbers.values()) == {1}
    assert not made.wants(WHOLE)


def test_first_steps_take_least_and_not_keep_least(monkeypatch):
    """By a step that was measured ahead: the one that keeps least takes more in its backward."""
    made = plans(1000 + 250, monkeypatch)
    assert "none was measured" in made.first.excess
    made.begin(1000)
    assert made.number_for(KEYS[1]) == LITTLE.number
    made.gauge(record((1, 1)))
    made.begin(1000)
    assert [made.number_for(key) for key in KEYS] == [LITTLE.number, MUCH.number]
    # 50 + 20 + 100 in the second backward, or 50 + 120 in the first.
    assert made.first.peak_bytes == 1170
    assert made.first.excess == ""


def test_first_steps_above_the_budget_say_their_bytes(monkeypatch):
    """The loss that was made up keeps nothing: what others may keep is left for them."""
    made = plans(1180, monkeypatch)
    made.plan = a_plan()
    made.gauge(record((1, 1)))
    made.begin(1000)
    assert "1.17 kB" in made.first.excess
    assert "without the loop's loss" in made.first.excess
    made.learn(record((1, 0)))
    made.begin(1000)
    assert made.first.excess == ""
    made.begin(1100)
    assert "take about 1.27 kB" in made.first.excess
    assert "exceed the budget, 1.18 kB" in made.first.excess
    assert "loss" not in made.first.excess


def _grouped(budget, monkeypatch):
    """Plans of a part whose small groups take 60 bytes less, and their numbers by the part."""
    small = part(is_small=True)
    made = GatheredPlans(DropInOptions(budget=budget), [part(small)])
    made.plan = a_plan()
    less = [
        cost._replace(forward_bytes=60, backward_bytes=cost.backward_bytes - 60, time_s=9.0)
        for cost in (MUCH, LITTLE)
    ]
    monkeypatch.setattr(
        GatheredPlans,
        "_choices_of",
        lambda self, index: tuple(less) if self._parts[index] is small else (MUCH, LITTLE),
    )
    return made, small


def test_small_groups_where_no_division_of_large_ones_fits(monkeypatch):
    """Readings of both are told apart; a share is one of large groups."""
    made, small = _grouped(1000 + 140, monkeypatch)
    for _ in range(2):
        made.learn(record((1, 1)))
    made.begin(1000)
    assert made._parts[0] is small
    assert made.peak_bytes <= 1140
    numbers = tuple(made.numbers[key] for key in KEYS)
    assert numbers == (1, 1)
    assert made.wants(WHOLE)
    for _ in range(2):
        made.learn(record(tuple(~number for number in numbers)))
    assert not made.wants(WHOLE)


def test_a_reading_that_was_too_high_leaves_large_groups(monkeypatch):
    """What is read once may be too much, as of a buffer that is held for longer."""
    made, small = _grouped(1000 + 200, monkeypatch)
    noisy = (AROUND._replace(backward=120), AROUND)
    made.gauge(record((1, 1), noisy))
    made.begin(1000)
    assert made._parts[0] is small
    for _ in range(2):
        made.learn(record((~1, ~1)))
    made.begin(1000)
    assert made._parts[0] is not small
    assert made.peak_bytes <= 1200


def test_a_refusal_names_the_least_of_both_kinds_of_groups(monkeypatch):
    made, _ = _grouped(1000, monkeypatch)
    for _ in range(2):
        made.learn(record((1, 1)))
    with pytest.raises(schedsim.InfeasibleBudgetError) as refused:
        made.begin(1000)
    assert refused.value.plan.min_feasible_bytes < 1170
