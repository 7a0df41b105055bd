"""Lengths that differ from step to step: one plan, evaluated at each."""

from __future__ import annotations

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")

from lengths import Net, batch, peak, planned, same, step  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.drop_in.plans import single_steps  # noqa: E402
from schedsim.validation.drop_in.plans.known_steps import KnownSteps  # noqa: E402
from schedsim.validation.drop_in.plans.schedule_search import ScheduleSearch  # noqa: E402
from schedsim.validation.guards.plan_variants import ReplannedWarning  # noqa: E402

import schedsim  # noqa: E402


def most_runs(session):
    return max(max(call.part.run_counts.values()) for call in session._step.calls.rows)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [False, True])
def test_a_new_length_is_evaluated(broken, monkeypatch):
    """Within the budget at every length, with no new trace, measurement or search."""
    model = Net(broken)
    most, _ = peak(copy.deepcopy(model), batch(128))
    budget = int(0.7 * most)
    plain = planned(model, batch(128), budget, dynamic=True)
    session = session_in(model)
    num_parts = len(session.parts)
    monkeypatch.setattr(KnownSteps, "measure", None)
    for name in ("search", "search_quickly"):
        monkeypatch.setattr(ScheduleSearch, name, None)
    for length in (128, 100, 64, 17, 127):
        same(model, plain, batch(length), budget)
    assert len(session.parts) == num_parts
    assert most_runs(session) > 1  # at 127 not all is kept
    step(model, batch(20))  # by a schedule that was compared: a new length does not wait
    same(model, plain, batch(20), budget)
    assert broken or most_runs(session) == 1  # and at 20 all is


@pytest.mark.slow
def test_the_predicted_peak_of_a_length_is_that_of_its_own_graph():
    """What is evaluated by formulas is what a trace of that length alone has."""
    model = Net()
    planned(model, batch(96), "80%", dynamic=True)
    (part, *_) = [part for part in session_in(model).parts if part.schedules]
    fixed = Net()
    planned(fixed, batch(40), "80%", dynamic=False)
    own = session_in(fixed).parts[-1]
    binding = tuple({8: 8, 96: 40}[size] for size in part.sizes.traced)
    assert binding
    tensors, _ = part.sizes.at(binding)
    mine = dict(zip(part.graph.arrays.tensor_names, tensors.tolist(), strict=True))
    arrays = own.graph.arrays
    its = dict(zip(arrays.tensor_names, arrays.tensor_bytes.tolist(), strict=True))
    common = mine.keys() & its.keys()  # all but the weight, a constant here and a tensor there
    assert len(common) >= len(its) - 1 > 40
    assert {name: mine[name] for name in common} == {name: its[name] for name in common}
    assert part.output_bytes(binding) - 8 == own.output_bytes()
    assert part.input_bytes(binding) == own.input_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("background", [True, False])
def test_a_longer_step_measures_nothing(background, monkeypatch):
    """Its schedule was searched before it came, or is found by a search that it can wait for."""
    monkeypatch.setattr(single_steps, "_plan_larger", lambda *_: None)
    model = Net(depth=6)
    most, _ = peak(copy.deepcopy(model), batch(150))
    budget = int(0.5 * most)
    plain = copy.deepcopy(model)
    options = {"effort": 0.2, "dynamic": True, "background": background}
    schedsim.rematerialize(model, batch(100), budget, in_place=True, **options)
    for length in (100, 100, 100, 101, 102):
        step(model, batch(length))
        session_in(model).plans.wait()
    monkeypatch.setattr(KnownSteps, "measure", None)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        step(model, batch(150))
    assert any(one.category is ReplannedWarning for one in said) == (not background)
    same(model, plain, batch(150), budget)


@pytest.mark.slow
def test_a_step_of_a_new_length_compares_nothing():
    """Its schedule was compared in the step that planned it; and again as the length comes back."""
    model = Net()
    most, _ = peak(copy.deepcopy(model), batch(64))
    budget = int(0.9 * most)
    plain = planned(model, batch(40), budget, dynamic=True)
    [trust] = [part.trust for part in session_in(model).parts if part.schedules]
    num_ahead = trust.num_compared
    assert num_ahead >= 1
    step(model, batch(64))
    assert most_runs(session_in(model)) > 1  # by another schedule than at 40, which keeps all
    assert trust.num_compared == num_ahead
    assert trust.num_sizes_uncompared == 1
    assert "the same code ran at 1 sizes at which it was not" in schedsim.drop_in_report(model)
    same(model, plain, batch(64), budget)
    assert trust.num_compared == num_ahead + 1
    assert trust.num_sizes_uncompared == 0


@pytest.mark.slow
def test_a_share_grows_with_the_longest(monkeypatch):
    """As where the longest comes first, and a longer step waits for no search."""
    model = Net()
    plain = planned(model, batch(40), "75%", dynamic=True)
    budget = session_in(model).budget_bytes
    for name in ("search", "search_quickly"):
        monkeypatch.setattr(ScheduleSearch, name, None)
    step(model, batch(150))
    longer = session_in(model).budget_bytes
    assert 2 * budget < longer <= 0.75 * peak(plain, batch(150))[0] + 4096
    same(model, plain, batch(150), longer)
    step(model, batch(40))
    assert session_in(model).budget_bytes == longer


@pytest.mark.slow
def test_the_largest_is_planned_for_from_the_start(monkeypatch):
    """By an option, or by what torch was told."""
    model = Net()
    most, _ = peak(copy.deepcopy(model), batch(128))
    budget = int(0.7 * most)
    plain = planned(model, batch(32), budget, dynamic=True, largest={1: 128})
    for name in ("search", "search_quickly"):
        monkeypatch.setattr(ScheduleSearch, name, None)
    same(model, plain, batch(128), budget)
    same(model, plain, batch(101), budget)


@pytest.mark.slow
def test_a_better_schedule_is_searched_beside_the_loop():
    """Where a longer length runs slowly; the next step has it."""
    model = Net()
    most, _ = peak(copy.deepcopy(model), batch(128))
    budget = int(0.75 * most)
    plain = copy.deepcopy(model)
    schedsim.rematerialize(model, batch(64), budget, in_place=True, effort=0.2, dynamic=True)
    for _ in range(3):
        step(model, batch(64))
    plans = session_in(model).plans
    (key,) = plans.known.numbers
    for _ in range(2):  # runs by a schedule that is known; what is found is used by the next
        assert plans.planned_for(key) != (8, 128)
        step(model, batch(128))
        plans.wait()
        same(model, plain, batch(128), budget)
        if plans.planned_for(key) == (8, 128):
            break
    else:
        pytest.fail("no better schedule was searched")
    assert session_in(model).parts[key[0]].sizes.measured.keys() == {(8, 64)}
