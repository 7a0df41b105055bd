"""The budget of a step of several parts."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


@pytest.mark.slow
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
    assert plans.known.budget_bytes > plans.known.resident.now.resident_bytes + kept * 0.8
    schedsim.restore(model)
    torch._dynamo.reset()
    schedsim.rematerialize(model, x, "30%", in_place=True, effort=0.2)
    model(x).square().sum().backward()
    with pytest.raises(schedsim.InfeasibleBudgetError, match="a step of 2 parts does not fit"):
        model(x)


class ManyLayers(nn.Module):
    """Two parts, of which the second keeps most of the bytes."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 16)
        layers = (nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(8))
        self.rest = nn.Sequential(*layers)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        torch._dynamo.graph_break()
        return self.rest(x)


@pytest.mark.slow
@pytest.mark.parametrize("share", ["90%", "70%"])
def test_what_one_part_leaves_another_uses(share):
    """A part has the very bytes that are left, not the next smaller of a few shares."""
    torch.manual_seed(0)
    model, x = ManyLayers(), torch.randn(256, 16)
    schedsim.rematerialize(model, x, share, in_place=True, effort=0.2)
    for _ in range(3):
        model(x).square().sum().backward()
    session = session_in(model)
    assert max(max(part.run_counts.values()) for part in session.parts) > 1
    assert 0.97 * session.budget_bytes < session.peak_bytes <= session.budget_bytes


class TwoKinds(nn.Module):
    """One of two second parts, as the caller says."""

    def __init__(self):
        super().__init__()
        self.first, self.deep, self.flat = nn.Linear(16, 16), layers(6), layers(4)

    def forward(self, x, deep):
        x = torch.tanh(self.first(x))
        torch._dynamo.graph_break()
        return (self.deep if deep else self.flat)(x)


def layers(count):
    made = (nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(count))
    return nn.Sequential(*made)


@pytest.mark.slow
def test_kinds_of_steps_in_turns_are_all_planned_within_a_share_of_the_largest():
    """A record of the second kind waits for its turn; it is the larger one here."""
    torch.manual_seed(0)
    model, x = TwoKinds(), torch.randn(256, 16)
    schedsim.rematerialize(model, (x, False), "80%", in_place=True, effort=0.2)

    def step(deep):
        model(x, deep).square().sum().backward()
        model.zero_grad()

    for i in range(12):
        step(i % 2 == 1)
    session = session_in(model)
    assert len(session.plans.known.records) == 2
    assert session.peak_bytes <= session.budget_bytes
    for deep in (False, True):
        [reading] = AllocatorMeter().read(lambda deep=deep: step(deep))
        taken = storage_bytes([x, *model.parameters()]) + reading.peak_bytes
        assert taken <= session.budget_bytes
    assert 0.8 * taken < session.budget_bytes < taken / 0.7


@pytest.mark.slow
@pytest.mark.parametrize("share", [pytest.param(0.8, marks=pytest.mark.slow), 0.7])
def test_micro_batches_one_ahead_run_what_was_planned(share):
    """Calls of one part in turns share a schedule: none of them alone is given what is left."""
    torch.manual_seed(0)
    model, x = ManyLayers(), torch.randn(128, 16)

    def step(module):
        previous = None
        for _ in range(3):
            loss = module(x).square().sum()
            if previous is not None:
                previous.backward()
            previous = loss
        previous.backward()
        module.zero_grad()

    [plain] = AllocatorMeter().read(lambda: step(copy.deepcopy(model)))
    budget = int(share * (plain.peak_bytes + storage_bytes([x])))
    schedsim.rematerialize(model, x, budget, in_place=True, effort=0.2, check="never")
    for _ in range(4):
        step(model)
    session = session_in(model)
    lines = session.plans._lines
    for record in session.plans.known.records:
        costs = [
            session.parts[key[0]].cost(session.numbers[key], size)
            for key, size in zip(record.keys, record.bindings, strict=True)
        ]
        assert lines._line(record, {}, lines._known_costs).peak_of(costs) <= session.peak_bytes
    assert session.peak_bytes <= budget
    [reading] = AllocatorMeter().read(lambda: step(model))
    assert reading.peak_bytes + storage_bytes([x, *model.parameters()]) <= budget


@pytest.mark.slow
def test_schedules_of_little_memory_come_where_shares_of_the_budget_give_none():
    """Each part needs less than a third of the budget while another one takes most of it."""

    def layers():
        made = (
            nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
            for _ in range(3)
        )
        return nn.Sequential(*made)

    class Thirds(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.three = layers(), layers(), layers()

        def forward(self, x):
            x = self.one(x)
            torch._dynamo.graph_break()
            x = self.two(x)
            torch._dynamo.graph_break()
            return self.three(x)

    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Thirds(), torch.randn(256, 16)
    optimizer = torch.optim.AdamW(model.parameters())
    schedsim.rematerialize(model, x, 575_000, in_place=True, effort=0.1, check="never")
    for _ in range(3):
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert session_in(model).peak_bytes <= 575_000
    [reading] = AllocatorMeter().read(lambda: model(x).square().sum().backward())
    states = [list(state.values()) for state in optimizer.state.values()]
    assert reading.peak_bytes + storage_bytes([x, *model.parameters(), states]) <= 575_000


class ReadsShared(nn.Module):
    """A layer that is a graph of its own, and reads what the first graph has made."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x, shared):
        torch._dynamo.graph_break()
        return self.down(torch.tanh(self.up(x)) * shared.sin())


class SharesOneResult(nn.Module):
    """As a position bias that the first layer makes for all."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 64), nn.Linear(16, 16)
        self.layers = nn.ModuleList(ReadsShared() for _ in range(3))

    def forward(self, x):
        shared = torch.tanh(self.first(x))
        for layer in self.layers:
            x = layer(x, shared)
        torch._dynamo.graph_break()
        return self.last(x)


@pytest.mark.slow
def test_the_gradient_of_what_several_graphs_read_waits_for_the_graph_that_made_it():
    """It is there while the backwards of those run that read it, too: predicted to the byte."""
    torch.manual_seed(0)
    model, x = SharesOneResult(), torch.randn(512, 16)
    schedsim.rematerialize(model, x, "60%", in_place=True, effort=0.2)

    def step():
        model(x).square().sum().backward()
        model.zero_grad()

    for _ in range(4):
        step()
    session = session_in(model)
    [reading] = AllocatorMeter().read(step)
    taken = storage_bytes([x, *model.parameters()]) + reading.peak_bytes
    assert taken <= session.peak_bytes <= session.budget_bytes
