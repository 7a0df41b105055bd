"""Schedules before a whole step was measured."""

from __future__ import annotations

import copy
import gc
import itertools
import re
import warnings

import pytest
from tiers import slow_where

torch = pytest.importorskip("torch")

from lengths import WIDTH, Net, batch, peak, planned, same  # noqa: E402
from schedsim.validation.drop_in import backend  # noqa: E402
from schedsim.validation.drop_in.backend import SESSIONS, session_of  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


@pytest.mark.slow
def test_refusals_lead_to_a_budget_that_works():
    """Each names a larger one; what is called proven is not more than what works in the end."""
    x = batch(64)
    most, _ = peak(Net(broken=True, depth=2), x)
    budgets, floors = [most // 2], []
    while True:
        torch._dynamo.reset()  # the models share the code of their blocks
        torch.manual_seed(0)
        model = Net(broken=True, depth=2)
        try:
            plain = planned(model, x, budgets[-1], check="never")
            break
        except schedsim.InfeasibleBudgetError as refused:
            budgets.append(refused.min_feasible_bytes)
            floors.append(refused.plan.least.floor_bytes)
    budget = budgets[-1]
    assert budgets == sorted(set(budgets))
    assert floors
    assert max(floors) <= budget <= most
    same(model, plain, x, budget)


@pytest.mark.slow
def test_the_budget_that_a_refusal_names_has_room_for_the_loss(monkeypatch):
    """For the number that each loop has, which is there while a backward runs, and its gradient."""
    torch.manual_seed(0)
    x, target = torch.randn(64, 16), torch.randint(5, (64,))
    budget = 1000
    for tries in range(2):
        torch._dynamo.reset()
        layers = [nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 5)]
        extra = storage_bytes(target)
        options = {"budget": budget, "effort": 0.2, "extra_bytes": extra}
        step = torch.compile(nn.Sequential(*layers), backend=backend.schedsim, options=options)
        try:
            for _ in range(3):  # the second is measured, and planned then
                nn.functional.cross_entropy(step(x), target).backward()
                step.zero_grad()
            break
        except schedsim.InfeasibleBudgetError as refused:
            assert not tries
            budget = refused.min_feasible_bytes
    assert budget > 1000


@pytest.mark.parametrize(
    "door", slow_where(["in place", "backend"], lambda door: door == "in place")
)
def test_the_first_budget_that_is_named_works(door):
    """Through steps that hold their outputs and make the states of their optimizer."""
    torch.manual_seed(0)
    x, target = torch.randn(512, 8), torch.randn(512, 64)

    def train(budget):
        torch._dynamo.reset()
        model = step = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64))
        options = {"budget": budget, "effort": 0.1, "extra_bytes": target.nbytes}
        if door == "in place":
            schedsim.rematerialize(model, (x,), in_place=True, check="never", **options)
        else:
            step = torch.compile(model, backend="schedsim", options=options)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(6):
            out = step(x)
            loss = nn.functional.mse_loss(out, target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    with pytest.raises(schedsim.InfeasibleBudgetError) as refused:
        train(200_000)
    assert "for the states of Adam" in refused.value.hint
    named = int(re.search(r"budget=(\d+)", refused.value.hint)[1])
    assert refused.value.min_feasible_bytes < named
    train(named)


@pytest.mark.slow
@pytest.mark.parametrize("door", ["in place", "backend"])
def test_the_first_budget_that_is_named_works_where_gradients_stay_through_a_forward(door):
    """Many loops zero them between the forward and the backward."""
    torch.manual_seed(0)
    x, target = torch.randn(64, 16), torch.randn(64, 16)

    def train(budget):
        torch._dynamo.reset()
        sizes = [16, 256, 256, 256, 16]
        layers = [it for pair in itertools.pairwise(sizes) for it in (nn.Linear(*pair), nn.Tanh())]
        model = step = nn.Sequential(*layers)
        options = {"budget": budget, "effort": 0.1, "extra_bytes": target.nbytes}
        if door == "in place":
            schedsim.rematerialize(model, (x,), in_place=True, check="never", **options)
        else:
            step = torch.compile(model, backend="schedsim", options=options)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(6):
            loss = nn.functional.mse_loss(step(x), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    with pytest.raises(schedsim.InfeasibleBudgetError) as refused:
        train(600_000)
    named = int(re.search(r"budget=(\d+)", refused.value.hint)[1])
    del refused  # with the frames of that try, whose model is in memory
    gc.collect()
    train(named)


@pytest.mark.parametrize("budget", [360_000, 400_000])
def test_copies_of_the_gradients_have_room_beside_a_first_schedule(budget):
    """Sharpness-aware minimisation holds them beside its second half: that was over the budget."""
    torch.manual_seed(0)
    layers = [it for _ in range(4) for it in (nn.Linear(64, 64), nn.Sigmoid(), nn.Tanh())]
    model, x = nn.Sequential(*layers), torch.randn(96, 64)
    options = {"budget": budget, "effort": 0.1}
    torch.compile(model, backend="schedsim", options=options)(x).square().mean().backward()
    session = session_of(options)
    part = session.parts[0]
    cost = part.cost(session.plans._first._numbers[0], ())
    room = budget - storage_bytes([*model.parameters()])
    room -= max(cost.forward_bytes, cost.backward_bytes)
    assert room >= part.gradient_bytes == storage_bytes([*model.parameters()])


@pytest.mark.slow
def test_a_guess_refuses_no_budget():
    """How much the loss takes is not known before the first step: a budget that fits is taken."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), torch.randn(2048, WIDTH)

    def run(module):
        module(x).square().sum().backward()
        module.zero_grad()

    [plain] = AllocatorMeter().read(lambda: run(copy.deepcopy(model)))
    budget = int(1.01 * (plain.peak_bytes + storage_bytes(x)))  # with the parameters of the copy
    schedsim.rematerialize(model, x, budget, in_place=True, effort=0.1, check="never")
    for _ in range(3):
        run(model)
    [reading] = AllocatorMeter().read(lambda: run(model))
    assert reading.peak_bytes + storage_bytes([x, *model.parameters()]) <= budget
    assert session_in(model).peak_bytes <= budget


@pytest.mark.slow
def test_a_budget_that_the_compared_step_does_not_fit_is_named():
    """Not as a step that differs from the plain one: the caller can ask for more."""
    x = batch(128)
    most, _ = peak(Net(broken=True), x)
    torch._dynamo.reset()
    with pytest.raises(schedsim.InfeasibleBudgetError, match="the first forward") as refused:
        schedsim.rematerialize(Net(broken=True), x, int(0.55 * most), in_place=True, effort=0.1)
    assert refused.value.min_feasible_bytes > 0.55 * most


@pytest.mark.slow
def test_a_first_schedule_is_compared_in_a_later_step():
    """It keeps little, and may be the one that fits when a longer length comes."""
    torch.manual_seed(0)
    model, options = Net(), {"budget": "75%", "effort": 0.1, "background": False}
    compiled = torch.compile(model, backend="schedsim", options=options, dynamic=True)
    compiled(batch(64))[0].square().mean().backward()
    session = next(it for given, it in SESSIONS.rows.values() if given == options)
    [part] = session.parts
    first = session._step.calls.rows[-1].number
    assert not part.trust.is_compared(first)
    assert part.trust.expects
    for _ in range(4):
        compiled(batch(64))[0].square().mean().backward()
    assert part.trust.is_compared(first)
    assert session._step.calls.rows[-1].number != first


@pytest.mark.slow
def test_a_kind_that_is_measured_later_makes_room_for_states_too():
    """Adversarial training: a step for the gradient of its input, and one that is measured later.

    Both have run before the optimizer has made its states; the first was measured since.
    """
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.Tanh())))
    x, fits = torch.randn(256, 64), []
    state = storage_bytes([*model.parameters()])
    budget = 4 * state + 6 * x.nbytes
    schedsim.rematerialize(model, x, budget, in_place=True, effort=0.1)
    optimizer = torch.optim.AdamW(model.parameters())
    session = session_in(model)

    def forward(given):
        found = model(given).square().mean()
        [*_, call] = session._step.calls.rows
        cost = call.part.cost(call.number, call.binding)
        resident = session.plans.known.resident.now.resident_bytes
        fits.append(resident + max(cost.forward_bytes, cost.backward_bytes) <= budget)
        return found

    for _ in range(4):
        given = x.clone().requires_grad_()
        [gradient] = torch.autograd.grad(forward(given), given)
        moved = (given + 0.01 * gradient.sign()).detach()
        del given, gradient
        forward(moved).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert fits == [True] * 8
    torch._dynamo.reset()


class LargeBehindDeep(nn.Module):
    """A graph that keeps much, and one with large parameters behind it."""

    def __init__(self):
        super().__init__()
        layers = (nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(6))
        self.deep, self.large = nn.Sequential(*layers), nn.Linear(16, 6000)

    def forward(self, x):
        x = self.deep(x)
        torch._dynamo.graph_break()
        return self.large(x.mean(0))


@pytest.mark.slow
def test_first_steps_have_room_for_gradients_of_later_graphs():
    """They are there in the backward of an earlier one: no step was measured that tells it."""
    torch.manual_seed(0)
    model, x = LargeBehindDeep(), torch.randn(256, 16)
    resident = storage_bytes([x, *model.parameters()])
    large = storage_bytes(model.large.weight)
    budget = resident + large + 350_000
    schedsim.rematerialize(model, x, budget, in_place=True, effort=0.2, check="never")

    def step():
        model(x).square().sum().backward()

    session_in(model)._recorder.turns.is_missing = False  # as where none can be measured
    [reading] = AllocatorMeter().read(step)
    assert session_in(model).peak_bytes is None
    assert resident + reading.peak_bytes <= budget


@pytest.mark.slow
def test_first_steps_keep_little_where_later_graphs_have_large_gradients():
    """Such gradients are there in the backward alone, and do not stand beside a loss to come."""
    torch.manual_seed(0)
    model, x = LargeBehindDeep(), torch.randn(256, 16)
    resident = storage_bytes([x, *model.parameters()])
    budget = resident + storage_bytes(model.large.weight) + 800_000
    schedsim.rematerialize(model, x, budget, in_place=True, effort=0.2, check="never")
    session = session_in(model)
    session._recorder.turns.is_missing = False  # as where none can be measured
    model(x)
    call = session._step.calls.rows[0]
    assert call.kept_bytes <= call.part.store_all_cost(()).kept_bytes / 2


class WideBehindDeep(nn.Module):
    """A graph that keeps much, and one that takes much for itself."""

    def __init__(self):
        super().__init__()
        layers = (
            nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32)) for _ in range(6)
        )
        self.deep, self.wide = nn.Sequential(*layers), nn.Linear(32, 300)

    def forward(self, x):
        x = self.deep(x)
        torch._dynamo.graph_break()
        return self.wide(x).log_softmax(-1).square().mean()


@pytest.mark.slow
def test_first_steps_are_divided_again_where_states_were_made():
    """Chosen by itself, the first graph takes room that the second one needs beside the states."""
    torch.manual_seed(0)
    model, x = WideBehindDeep(), torch.randn(256, 32)
    budget = 1_870_000
    schedsim.rematerialize(model, x, budget, in_place=True, effort=0.2, check="never")
    optimizer = torch.optim.AdamW(model.parameters())
    session = session_in(model)
    for _ in range(2):
        session._recorder.turns.is_missing = False  # as where none can be measured
        resident = storage_bytes([x, *model.parameters(), dict(optimizer.state)])
        [reading] = AllocatorMeter().read(lambda: model(x).backward())
        assert resident + reading.peak_bytes <= budget
        optimizer.step()
        optimizer.zero_grad()
    assert session.peak_bytes is None


class WideBehindKept(nn.Module):
    """A graph whose first schedule keeps what the one behind it, which takes much, has no room for.

    The loss is a sum: its gradients come in strides for which the first step traces again.
    """

    def __init__(self):
        super().__init__()
        self.kept = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))
        self.wide, self.narrow = nn.Linear(32, 300), nn.Linear(300, 32)

    def forward(self, x):
        for layer in self.kept:
            x = x + torch.tanh(layer(x)).sigmoid()
        torch._dynamo.graph_break()
        return self.narrow(self.wide(x).log_softmax(-1).square()).sigmoid()


@pytest.mark.slow
@pytest.mark.parametrize("budget", [1_300_000, 1_320_000])
def test_the_second_step_is_divided_where_the_first_was_the_last_of_its_graphs(budget):
    """Each graph by itself took room that the others need, until a step was measured."""
    torch.manual_seed(0)
    model, x = WideBehindKept(), torch.randn(256, 32)
    options = {"budget": budget, "effort": 0.1}
    step = torch.compile(model, backend="schedsim", options=options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            step(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert session_of(options).peak_bytes is not None
    assert not [str(it.message) for it in caught if "exceed" in str(it.message)]
    assert not [str(it.message) for it in caught if "more than the budget" in str(it.message)]
