"""Refusals wait until the steps of all models were seen, and the largest is raised."""

from __future__ import annotations

import gc
import re
import warnings
import weakref
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.plans.loop_round import LoopRound  # noqa: E402
from schedsim.validation.drop_in.records.step_record import StepKind  # noqa: E402
from schedsim.validation.guards.plan_variants import ReplannedWarning  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import InfeasibleBudgetError  # noqa: E402

ONE, TWO = StepKind(0), StepKind(0, frozenset({1}))


def refusal(least):
    """A refusal whose least budget is `least`."""
    plan = SimpleNamespace(budget_bytes=1, min_feasible_bytes=least)
    return InfeasibleBudgetError("it does not fit", plan=plan)


class Planned:
    """What plans the steps of one model."""

    def __init__(self, refused=None, is_measured=True):
        self.refused, self.is_measured = refused, is_measured
        self.is_lifted, self.num_measured = False, 0

    def lift(self):
        self.is_lifted = True

    def lower(self):
        self.is_lifted = False
        return self.refused


def of_two(*refused):
    """A round with two models."""
    loop, planners = LoopRound(), [Planned(it) for it in refused]
    for number, planner in enumerate(planners):
        loop.joins(number, planner)
    return loop, planners


def test_a_model_alone_is_refused_at_once():
    loop, planners = of_two(None)
    assert not loop.put_off(0, ONE, [])
    assert not planners[0].is_lifted


def test_the_largest_refusal_is_raised_as_the_second_round_begins():
    small, large = refusal(100), refusal(200)
    loop, planners = of_two(small, large)
    assert loop.put_off(0, ONE, [1])
    assert all(it.is_lifted for it in planners)
    loop.trains(0)
    loop.begins(1, TWO, [0, 1])
    loop.begins(0, ONE, [0, 1])  # the other model was not trained yet
    loop.trains(1)
    with pytest.raises(InfeasibleBudgetError) as caught:
        loop.begins(0, ONE, [0, 1])
    assert caught.value is large
    assert not any(it.is_lifted for it in planners)
    assert not loop.is_on
    assert not loop.put_off(0, ONE, [1])  # it was told


def test_a_refusal_that_is_caught_holds_no_frames():
    """Nor with them the tensors of the forward in which it came."""
    loop, planners = of_two(None, None)
    loop.put_off(0, ONE, [1])
    planners[1].lower = lambda: refusal(200)
    gc.disable()
    try:
        loop.end()
    except InfeasibleBudgetError as error:
        caught = weakref.ref(error)
    finally:
        gc.enable()
    assert caught() is None


def test_a_round_goes_on_while_kinds_of_steps_are_measured():
    """A refusal that comes before names what is guessed of those that are not."""
    loop, planners = of_two(refusal(100), None)
    planners[1].is_measured = False
    loop.put_off(0, ONE, [1])
    loop.trains(0)
    loop.trains(1)
    for num_measured in range(1, 8):
        planners[1].num_measured = num_measured
        loop.begins(0, ONE, [0, 1])
    for _ in range(2):
        loop.begins(0, ONE, [0, 1])
    assert loop.is_on
    with pytest.raises(InfeasibleBudgetError):
        loop.begins(0, ONE, [0, 1])


def test_a_model_that_is_never_trained_is_not_awaited_for_long():
    loop, planners = of_two(refusal(100), None)
    loop.put_off(0, ONE, [1])
    loop.trains(0)
    for _ in range(2):
        loop.begins(0, ONE, [0, 1])
    assert planners[0].is_lifted
    with pytest.raises(InfeasibleBudgetError):
        loop.begins(0, ONE, [0, 1])


def test_what_fits_in_the_end_is_not_refused():
    loop, planners = of_two(None, None)
    loop.put_off(0, ONE, [1])
    loop.trains(0)
    loop.trains(1)
    loop.begins(0, ONE, [0, 1])
    assert not loop.is_on
    assert not planners[1].is_lifted


def test_models_that_are_still_to_come_are_awaited():
    """As those that torch.compile was given, and that nobody has called."""
    loop, planners = of_two(refusal(100))
    comes = [True]
    loop.coming.append(lambda: comes[0])
    assert loop.put_off(0, ONE, [])
    loop.trains(0)
    loop.begins(0, ONE, [0])
    assert planners[0].is_lifted
    comes[0] = False
    with pytest.raises(InfeasibleBudgetError):
        loop.begins(0, ONE, [0])


def test_a_model_that_is_gone_ends_the_round():
    loop, planners = of_two(refusal(100), None)
    loop.put_off(0, ONE, [1])
    planners.clear()
    gc.collect()
    assert not loop.is_on


def net(num_in, num_out, width=96):
    """Layers whose activations are most of a step's memory."""
    inner = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(2)]
    return nn.Sequential(nn.Linear(num_in, width), nn.Tanh(), *inner, nn.Linear(width, num_out))


def policy_and_value(budget, way, num_steps=6):
    """Two nets that one loss and one optimizer train; each knows its own batch alone."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    policy, value, x = net(16, 8), net(16, 1), torch.randn(1024, 16)
    optimizer = torch.optim.AdamW([*policy.parameters(), *value.parameters()])

    def given(model):
        options = {"budget": budget, "effort": 0.1}
        if way == "backend":
            return torch.compile(model, backend="schedsim", options=options)
        return schedsim.rematerialize(model, x, in_place=True, check="never", **options)

    choose, judge = given(policy), given(value)
    for _ in range(num_steps):
        (choose(x).square().mean() + judge(x).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


def named_by(budget, way):
    """What the refusal of `budget` names; ``None`` where it is not refused."""
    gc.collect()
    try:
        policy_and_value(budget, way)
    except InfeasibleBudgetError as error:
        return int(re.search(r"budget=(\d+)", error.hint)[1])
    return None


@pytest.mark.slow
@pytest.mark.parametrize("way", ["backend", "in place"])
def test_the_first_refusal_of_a_loop_of_two_models_names_a_budget_that_holds(way):
    """Neither knows of the other's states; the loop goes round once, and a line says so."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        named = named_by(1_780_000, way)
    assert named is not None
    lines = [str(one.message) for one in said if issubclass(one.category, ReplannedWarning)]
    known = [line for line in lines if "until the steps of each were seen" in line]
    assert known
    assert all(re.search(r"they take [1-9][0-9.]* [kM]B", line) for line in known)
    assert named_by(named, way) is None
