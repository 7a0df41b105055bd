"""A refusal has room for kinds of steps that have run, and were not measured yet."""

from __future__ import annotations

import gc
import re
import warnings
from functools import partial
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.drop_in.parts.part_line import CallInLine, PartCost  # noqa: E402
from schedsim.validation.drop_in.plans.ordered_line import plain_line  # noqa: E402
from schedsim.validation.drop_in.plans.unmeasured_steps import (  # noqa: E402
    UnmeasuredSteps,
    record_without_measurements,
)
from schedsim.validation.drop_in.records.step_calls import PartCall, StepCalls  # noqa: E402
from schedsim.validation.drop_in.records.step_record import NOTHING, StepKind, StepRecord  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import InfeasibleBudgetError  # noqa: E402


def layers(num_in, num_out, width=48):
    return nn.Sequential(nn.Linear(num_in, width), nn.Tanh(), nn.Linear(width, num_out))


class ActorAndCritic(nn.Module):
    """One model with two forwards, trained by two optimizers in turn."""

    def __init__(self):
        super().__init__()
        self.actor, self.critic = layers(8, 4), layers(12, 1)

    def forward(self, state, action=None):
        if action is None:
            return torch.tanh(self.actor(state))
        return self.critic(torch.cat([state, action], -1)), self.critic(
            torch.cat([state, -action], -1)
        )


def train(budget, num_steps=5):
    """Steps of both in turn."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, state, action = ActorAndCritic(), torch.randn(128, 8), torch.randn(128, 4)
    critics = torch.optim.AdamW(model.critic.parameters())
    actors = torch.optim.AdamW(model.actor.parameters())
    schedsim.rematerialize(
        model, state, budget, in_place=True, effort=0.1, check="never", extra_bytes=action.nbytes
    )
    for _ in range(num_steps):
        one, two = model(state, action)
        (one.square().mean() + two.square().mean()).backward()
        critics.step()
        critics.zero_grad()
        one, two = model(state, model(state))
        (-torch.min(one, two).mean()).backward()
        actors.step()
        model.zero_grad()


def named_by(budget, loop=train):
    """The budget that the refusal of `budget` names; ``None`` where it is not refused."""
    gc.collect()
    try:
        loop(budget)
    except InfeasibleBudgetError as error:
        return int(re.search(r"budget=(\d+)", error.hint)[1])
    return None


@pytest.mark.slow
def test_steps_of_two_kinds_are_refused_once_more_at_most():
    """The first graph of all knows of no other; what then is named has room for both kinds."""
    named = named_by(90_000)
    again = named_by(named)
    assert again is None or named_by(again) is None


def generator_and_critic(budget, num_steps=5, penalty=False):
    """Two models with a budget each, of which one runs between the halves of the other.

    Parameters
    ----------
    penalty
        Whether the critic's loss has one of its gradient, whose graph stands before its step.
    """
    torch._dynamo.reset()
    torch.manual_seed(0)
    generator, critic = layers(8, 64, 128), layers(64, 1, 128)
    noise, real = torch.randn(128, 8), torch.randn(128, 64)
    batch = noise.nbytes + real.nbytes
    one, two = (torch.optim.Adam(it.parameters()) for it in (generator, critic))
    for model, x in zip((generator, critic), (noise, real), strict=True):
        schedsim.rematerialize(
            model, x, budget, in_place=True, effort=0.1, check="never", extra_bytes=batch
        )
    for _ in range(num_steps):
        fake = generator(noise).detach()
        two.zero_grad()
        loss = critic(fake).mean() - critic(real).mean()
        if penalty:
            mixed = ((fake + real) / 2).requires_grad_()
            found = critic.forward(mixed).sum()
            [gradient] = torch.autograd.grad(found, mixed, create_graph=True)
            loss = loss + (gradient.norm(dim=1) - 1).square().mean()
            del mixed, found, gradient
        loss.backward()
        del fake, loss
        two.step()
        one.zero_grad()
        (-critic(generator(noise)).mean()).backward()
        one.step()


@pytest.mark.slow
def test_a_generator_is_refused_once():
    """What its backward takes behind its critic's is planned by its own session, and not twice."""
    named = named_by(400_000, generator_and_critic)
    assert named is not None
    assert named_by(named, generator_and_critic) is None


@pytest.mark.slow
def test_what_stands_beside_a_critics_step_is_not_counted_in_its_generators():
    """As the graph of a gradient penalty: a refusal names a budget that is taken, and not roomy."""
    loop = partial(generator_and_critic, penalty=True)
    named = named_by(640_000, loop)
    assert named is not None
    assert named_by(named, loop) is None
    assert named_by(int(0.97 * named), loop) is not None


def test_calls_that_nothing_tells_apart_train_their_own_parameters():
    """Those of a step that no record saw are not one: gradients of all count."""
    calls = StepCalls([PartCall((i, 0), None, (), 0, 8, 0) for i in range(2)])
    assert record_without_measurements(calls).trained == ()
    calls.rows[0].trained = calls.rows[1].trained = 5
    assert record_without_measurements(calls).trained == (5, 5)


def test_a_refusal_has_room_for_the_step_that_begins():
    """Of its first graph at least, if steps of its kind have never run."""
    model = nn.Linear(16, 16)
    schedsim.rematerialize(model, torch.randn(64, 16), 10**6, in_place=True, check="never")
    model(torch.randn(64, 16)).sum().backward()
    plans = session_in(model).plans
    plans.known.records = []
    assert plans.unmeasured.least_bytes() == 0
    plans.unmeasured.comes(StepKind(0), ())
    assert plans.unmeasured.least_bytes() == 0  # it fits
    plans.known.budget_bytes = 1000
    least = plans.unmeasured.least_bytes()
    assert least > plans.known.resident.now.resident_bytes + 64 * 16 * 4
    plans.known.records = [StepRecord(((0, 0),), ((),), (0,), (NOTHING,), (NOTHING,))]
    assert plans.unmeasured.least_bytes() == 0


def ended(*keys):
    """The calls of a step, all backwards of which have run."""
    return StepCalls([PartCall(key, None, (), 0, 0, 0, is_done=True) for key in keys])


def test_a_step_that_went_on_once_may_do_so_again_but_not_for_ever():
    """As one of three forwards, behind one of two: no plan has room for the third."""
    one, two, three = ((0, i) for i in range(3))
    known = SimpleNamespace(numbers={}, records=[])
    unmeasured = UnmeasuredSteps(known, None)
    unmeasured.see(ended(one, two, three))
    assert unmeasured.may_go_on((one,))
    known.numbers = {one: 0, two: 0}
    assert unmeasured.may_go_on((one,))
    assert unmeasured.may_go_on((one, two))
    assert not unmeasured.may_go_on((two,))
    for _ in range(7):
        unmeasured.see(ended(one, two))
    assert unmeasured.may_go_on((one, two))
    unmeasured.see(ended(one, two, three))  # so it does come
    for _ in range(7):
        unmeasured.see(ended(one, two))
    assert unmeasured.may_go_on((one, two))
    unmeasured.see(ended(one, two))
    assert not unmeasured.may_go_on((one, two))
    unmeasured.see(ended(one, two, three))
    known.numbers[three] = 0
    assert not unmeasured.may_go_on((one, two))


def images(width=32):
    """From images to points, with statistics of the batch."""

    def block(num_in, stride=1):
        convolution = nn.Conv2d(num_in, width, 3, stride, 1)
        return nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU())

    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, width))
    return nn.Sequential(block(3), block(width), block(width, 2), pooled)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="counts the CPU's bytes")
def test_two_forwards_and_three_in_turns_are_planned_for():
    """The third comes again, behind a step that was measured without it."""

    def loop(call):
        optimizer, positive = torch.optim.AdamW(model.parameters()), x.flip(-1)
        for i in range(4):
            one, two = call(x), call(positive)
            with torch.set_grad_enabled(i % 2 == 0):
                three = call(x.roll(1, 0))
            loss = nn.functional.triplet_margin_loss(one, two, three)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = images(), torch.randn(16, 3, 16, 16)
    static = storage_bytes([*model.parameters(), x])
    [plain] = AllocatorMeter().read(lambda: loop(model))
    budget = int(0.6 * (plain.peak_bytes + static))
    options = {"budget": budget, "effort": 0.1, "extra_bytes": 2 * x.nbytes}
    step = torch.compile(model, backend="schedsim", options=options)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loop(step)
    assert not [it for it in said if "once more than steps were planned for" in str(it.message)]


def part_of_sizes(*names):
    return SimpleNamespace(sizes=SimpleNamespace(names=names))


def test_a_step_goes_on_by_the_parts_that_replace_others():
    parts = [part_of_sizes(), part_of_sizes(), part_of_sizes(), part_of_sizes("s0")]
    known = SimpleNamespace(parts=parts, records=[], numbers={}, largest=dict.fromkeys(range(4)))
    steps = UnmeasuredSteps(known, lines=None)
    calls = StepCalls([PartCall((i, 0), None, (), 0, 8, 0, is_done=True) for i in range(2)], [0, 1])
    steps.see(calls, {0: 2})
    assert [it.keys for it in steps.of_several()] == [((2, 0), (1, 0))]
    steps.replace(1, 0)
    assert [it.keys for it in steps.of_several()] == [((2, 0), (0, 0))]
    steps.replace(2, 3)  # at other sizes
    assert steps.of_several() == []


@pytest.mark.parametrize(("budget", "named"), [(100, 0), (60, 81)])
def test_steps_that_fit_are_refused_by_no_guess(budget, named):
    """Each refusal named a hundredth more than the budget that it refused."""
    call = CallInLine((PartCost(0, 40, 50, 80, 1.0),), 0, 0, 0, 0)
    lines = SimpleNamespace(least_line=lambda _: plain_line([call]))
    known = SimpleNamespace(records=[], largest={0: ()}, budget_bytes=budget)
    steps = UnmeasuredSteps(known, lines)
    steps.see(ended((0, 0)))
    assert steps.least_bytes(guesses=False) == pytest.approx(named, abs=1)
