"""Lengths that differ from step to step: one plan, evaluated at each."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in import step_plans  # noqa: E402
from schedsim.validation.drop_in.drop_in_options import DropInOptions  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.guards.plan_variants import ReplannedWarning  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim import Chain  # noqa: E402
from schedsim.api import try_plan  # noqa: E402

WIDTH = 16


class Block(nn.Module):
    def __init__(self, broken):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop, self.broken = nn.Dropout(0.1), broken

    def forward(self, x):
        x = x + self.drop(self.down(torch.tanh(self.up(torch.tanh(x)))))
        if self.broken:
            torch._dynamo.graph_break()
        return x


class Net(nn.Module):
    """Its second output is computed from a size."""

    def __init__(self, broken=False, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block(broken) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x, x.shape[1] * 1.5


def batch(length):
    torch.manual_seed(length)
    return torch.randn(8, length, WIDTH)


def step(model, x):
    """Loss and gradients of a step whose loss is outside."""
    torch.manual_seed(7)
    output, weight = model(x)
    loss = output.square().mean() * weight
    loss.backward()
    found = [loss.detach(), *(p.grad for p in model.parameters())]
    model.zero_grad(set_to_none=True)
    return found


def peak(model, x):
    [reading] = AllocatorMeter().read(lambda: step(model, x))
    return reading.peak_bytes + storage_bytes([*model.parameters(), x]), reading.result


def same(model, plain, x, budget):
    """Assert that the step is the plain one to the bit, and within `budget`."""
    taken, found = peak(model, x)
    assert all(map(torch.equal, found, step(plain, x)))
    assert taken <= budget


def most_runs(session):
    return max(max(call.part.run_counts.values()) for call in session._calls)


def planned(model, first, budget, **options):
    plain = copy.deepcopy(model)
    schedsim.rematerialize(
        model, first, budget, in_place=True, effort=0.2, background=False, **options
    )
    for _ in range(3):
        step(model, first)
    return plain


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
    for name in ("_measure", "_search"):
        monkeypatch.setattr(type(session.plans), name, None)
    for length in (128, 100, 64, 17, 127):
        same(model, plain, batch(length), budget)
    assert len(session.parts) == num_parts
    assert most_runs(session) > 1  # at 127 not all is kept
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


def test_longer_than_planned():
    """What fits is run by what is known; what does not is planned anew, once, and said."""
    model = Net()
    most, _ = peak(copy.deepcopy(model), batch(160))
    budget = int(0.6 * most)
    plain = planned(model, batch(32), budget, dynamic=True)
    for length in (40, 160):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            step(model, batch(length))
        replans = [one for one in said if one.category is ReplannedWarning]
        assert len(replans) == (length == 160)
        same(model, plain, batch(length), budget)
    assert "= 160" in schedsim.drop_in_report(model)


@pytest.mark.slow
@pytest.mark.parametrize("background", [True, False])
def test_a_longer_step_measures_nothing(background, monkeypatch):
    """Its schedule was searched before it came, or is found by a search that it can wait for."""
    model = Net(depth=6)
    most, _ = peak(copy.deepcopy(model), batch(150))
    budget = int(0.55 * most)
    plain = copy.deepcopy(model)
    options = {"effort": 0.2, "dynamic": True, "background": background}
    schedsim.rematerialize(model, batch(100), budget, in_place=True, **options)
    for length in (100, 100, 100, 101, 102):
        step(model, batch(length))
        session_in(model).plans.wait()
    monkeypatch.setattr(step_plans.StepPlans, "_measure", None)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        step(model, batch(150))
    assert any(one.category is ReplannedWarning for one in said) == (not background)
    same(model, plain, batch(150), budget)


@pytest.mark.slow
def test_the_largest_is_planned_for_from_the_start(monkeypatch):
    """By an option, or by what torch was told."""
    model = Net()
    most, _ = peak(copy.deepcopy(model), batch(128))
    budget = int(0.7 * most)
    plain = planned(model, batch(32), budget, dynamic=True, largest={1: 128})
    session = session_in(model)
    monkeypatch.setattr(type(session.plans), "_search", None)
    same(model, plain, batch(128), budget)
    same(model, plain, batch(101), budget)


@pytest.mark.slow
def test_a_second_length_opens_the_size():
    """As torch.compile does: the first length is traced as it is, the second with an open size."""
    model = Net(depth=2)
    plain = planned(model, batch(32), 10**9)
    session = session_in(model)
    for length in (48, 33, 47):
        assert all(map(torch.equal, step(model, batch(length)), step(plain, batch(length))))
    assert [bool(part.sizes.names) for part in session.parts][-1]
    num_parts = len(session.parts)
    step(model, batch(46))
    assert len(session.parts) == num_parts


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
    (key,) = plans.numbers
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


class PartlyTraced(nn.Module):
    """Most of its parameters are in no part of the step."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.hidden = nn.Sequential(nn.Linear(WIDTH, 512), nn.Tanh(), nn.Linear(512, WIDTH))

    def forward(self, x):
        x = torch.tanh(self.inner(torch.tanh(self.first(x))))
        return torch.tanh(self.last(unseen(self.hidden, x)))


@torch._dynamo.disable
def unseen(module, x):
    return module(x)


def test_code_outside_of_parts_is_counted():
    """Its parameters with the optimizer's state, what it keeps, and what its backward takes."""
    model, x = PartlyTraced(), batch(16)
    schedsim.rematerialize(model, x, "10MB", in_place=True, effort=0.1, optimizer="adamw")

    def run():
        model(x).square().sum().backward()
        model.zero_grad()

    for _ in range(3):
        run()
    [reading] = AllocatorMeter().read(run)
    session = session_in(model)
    assert len(session.parts) == 2
    resident = 3 * storage_bytes([*model.parameters()])
    assert session.plans.resident_bytes >= resident
    assert resident + storage_bytes(x) + reading.peak_bytes <= session.peak_bytes


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


def test_a_budget_that_the_compared_step_does_not_fit_is_named():
    """Not as a step that differs from the plain one: the caller can ask for more."""
    x = batch(128)
    most, _ = peak(Net(broken=True), x)
    torch._dynamo.reset()
    with pytest.raises(schedsim.InfeasibleBudgetError, match="part1 does not fit") as refused:
        schedsim.rematerialize(Net(broken=True), x, int(0.55 * most), in_place=True, effort=0.1)
    assert refused.value.min_feasible_bytes > 0.55 * most


class LateTraced(nn.Module):
    """Its first layers are in no part of the step."""

    def __init__(self, broken):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(WIDTH, 512), nn.Tanh(), nn.Linear(512, WIDTH))
        self.first, self.last, self.broken = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH), broken

    def forward(self, x):
        x = torch.tanh(self.first(unseen(self.hidden, x)))
        if self.broken:
            torch._dynamo.graph_break()
        return torch.tanh(self.last(x))


@pytest.mark.parametrize("broken", [False, True])
def test_code_before_the_first_part_is_counted(broken):
    """What it keeps for its backward is there in every part, whether there is one or more."""
    torch._dynamo.reset()
    model, x = LateTraced(broken), batch(16)
    schedsim.rematerialize(model, x, "10MB", in_place=True, effort=0.1)

    def run():
        model(x).square().sum().backward()
        model.zero_grad()

    for _ in range(3):
        run()
    [reading] = AllocatorMeter().read(run)
    session = session_in(model)
    assert len(session.parts) == 1 + broken
    taken = storage_bytes([x, *model.parameters()]) + reading.peak_bytes
    assert taken <= session.peak_bytes <= 1.3 * taken


def test_a_share_is_one_of_the_whole_step():
    """The first of its graphs alone does not fit in that share of its own peak."""
    torch.manual_seed(0)

    def layers(count):
        made = (
            nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(count)
        )
        return nn.Sequential(*made)

    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = layers(1), layers(5)

        def forward(self, x):
            x = self.first(x)
            torch._dynamo.graph_break()
            return self.second(x)

    torch._dynamo.reset()
    model, x = Halves(), torch.randn(256, 16)
    schedsim.rematerialize(model, x, "80%", in_place=True, effort=0.2)
    for _ in range(2):
        model(x).square().sum().backward()
    plans = session_in(model).plans
    kept = 256 * (2 * 64 + 16) * 4 * 6
    assert plans.budget_bytes > plans.resident_bytes + kept * 0.8
    schedsim.restore(model)
    torch._dynamo.reset()
    schedsim.rematerialize(model, x, "30%", in_place=True, effort=0.2)
    model(x).square().sum().backward()
    with pytest.raises(schedsim.InfeasibleBudgetError, match="a step of 2 parts does not fit"):
        model(x)


@pytest.mark.parametrize("late", [1, 2, 3])
def test_a_search_that_finds_nothing_goes_on_before_the_budget_is_refused(late, monkeypatch):
    """A schedule that is found by luck, or with more effort, is no reason to refuse a step."""
    efforts = []
    chain = Chain.from_arrays(
        "three",
        9,
        forward_s=[1] * 3,
        backward_s=[2] * 3,
        output_bytes=[9] * 3,
        saved_bytes=[20] * 3,
    )

    def unlucky(workload, budget_bytes, planner, effort):
        efforts.append(effort)
        plan = try_plan(workload, budget_bytes, planner, effort=effort)
        is_late = len(efforts) >= late
        return plan if is_late else replace(plan, schedule=None, status="infeasible")

    monkeypatch.setattr(step_plans, "try_plan", unlucky)
    plans = step_plans.StepPlans(DropInOptions(budget=10**6, effort=0.5), [], lambda: None)
    found = plans._search_long(chain, 10**6, 1.0)
    assert found.schedule is not None
    assert efforts == [0.5, 2.0, 6.0][:late]
    efforts.clear()
    refuted = plans._search_long(chain, 1, 1.0)
    assert refuted.least.refutes(1)
    assert len(efforts) == 1
