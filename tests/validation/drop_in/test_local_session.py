"""Steps of several graphs, and of several forwards, share one budget."""

from __future__ import annotations

import copy
import gc
import logging
import weakref
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.backend import session_of  # noqa: E402
from schedsim.validation.drop_in.drop_in_options import DropInOptions  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.drop_in.local_session import LocalSession  # noqa: E402
from schedsim.validation.drop_in.plans.resident_by_kind import Before  # noqa: E402
from schedsim.validation.drop_in.records.step_record import StepKind  # noqa: E402
from schedsim.validation.guards.plan_variants import ReplannedWarning  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


@pytest.fixture(autouse=True)
def _without_metrics(monkeypatch):
    """Beside transformers, torch 2.11 logs an error of its metrics, whose frames pytest keeps."""
    metrics = logging.getLogger("torch._dynamo.metrics_context")
    monkeypatch.setattr(metrics, "disabled", True)


class Block(nn.Module):
    """Two layers, and a line that Dynamo does not trace."""

    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.down(torch.tanh(self.up(torch.tanh(x))))
        torch._dynamo.graph_break()
        return x


class Broken(nn.Module):
    """A graph for each block."""

    def __init__(self, width=16, depth=4):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_schedules_are_compared_beside_what_other_models_and_earlier_calls_keep():
    """A critic is called twice while the step of an actor is open."""

    def call(kept, shared, is_open=True):
        return SimpleNamespace(kept_bytes=kept, shared_bytes=shared, is_open=is_open)

    session = LocalSession(DropInOptions(1000))
    session.plans.known.take_fixed()
    session.plans.known.resident.begin(StepKind(0), Before(100, 50))
    rows = session._step.calls.rows
    rows.append(call(40, 10))
    assert session.room_for(None, ()) == 1000 - 150
    rows.append(call(70, 15))  # of which the first has made 5, and 10 are given to both
    assert session.room_for(None, ()) == 1000 - (150 + 10 + 40 - 15)
    rows[0].is_open = False
    assert session.room_for(None, ()) == 1000 - 150


def loop(model, batch):
    x, target = batch
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def in_a_cycle():
    """A tensor that only a collection of cycles frees, as Dynamo leaves where it traces."""
    box = [torch.zeros(8)]
    box.append(box)
    return weakref.ref(box[0])


@pytest.mark.slow
def test_what_a_trace_leaves_in_cycles_is_gone_in_the_next_step():
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    options = {"budget": "1MB", "effort": 0.1}
    step = torch.compile(model, backend="schedsim", options=options)
    gc.disable()
    try:
        for _ in range(8):  # some are measured, planned, or begin with a look at what is there
            step(x).sum().backward()
        session = session_of(options)
        settled = in_a_cycle()
        step(x).sum().backward()
        assert settled() is not None  # nothing was traced: no time is spent
        session.add(session.parts[0])
        step(x).sum().backward()
        assert settled() is None
    finally:
        gc.enable()


@pytest.mark.slow
def test_a_step_of_several_graphs():
    """The measured peak of all of them, and of the loss, stays within; the bits are the same."""
    torch.manual_seed(0)
    batch = torch.randn(512, 16), torch.randn(512, 16)
    model = Broken()
    plain, first = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    resident = storage_bytes([*model.parameters(), *batch])
    [reading] = AllocatorMeter().read(lambda: loop(plain, batch))
    budget = int(0.7 * (reading.peak_bytes + resident))
    schedsim.rematerialize(model, batch[0], budget, in_place=True, effort=0.5)
    loop(model, batch)
    model.load_state_dict(first)
    [within] = AllocatorMeter().read(lambda: loop(model, batch))
    assert within.peak_bytes + resident <= budget
    assert within.result == reading.result
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    session = session_in(model)
    assert len(session.numbers) >= 4
    assert session.peak_bytes <= budget
    assert any(max(part.run_counts.values()) > 1 for part in session.parts)


class Cyclic(nn.Module):
    """What it makes lies in a cycle of references, as in graph libraries: no count reaches zero."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        torch._dynamo.graph_break()
        keep_forever([x])
        return torch.tanh(self.second(x))


@torch._dynamo.disable
def keep_forever(box):
    box.append(box)


@pytest.mark.slow
def test_a_forward_that_lives_on_in_a_cycle_ends():
    """That of the first look, and one without a backward: the steps are planned all the same."""
    torch.manual_seed(0)
    model, x = Cyclic(), torch.randn(64, 16)
    gc.disable()
    try:
        schedsim.rematerialize(model, x, 10**6, in_place=True, effort=0.1, check="never")
        session = session_in(model)
        model(x)
        for _ in range(4):
            model(x).square().mean().backward()
    finally:
        gc.enable()
    assert [len(record.keys) for record in session.plans.known.records] == [2]
    assert session.peak_bytes is not None


def in_turns(model, batches):
    """Forwards run two ahead of backwards, which come in the same order."""
    losses = []
    for i, (x, target) in enumerate(batches):
        losses.append(nn.functional.mse_loss(model(x), target))
        if i > 1:
            losses[i - 2].backward()
            losses[i - 2] = None
    for loss in losses[-2:]:
        loss.backward()


def first_in_first_out(model, batches):
    """All forwards, then backwards in the same order; outputs stay, as in a pipeline's stage."""
    outputs = [model(x) for x, _ in batches]
    losses = [
        nn.functional.mse_loss(out, target)
        for out, (_, target) in zip(outputs, batches, strict=True)
    ]
    for i in range(len(losses)):
        losses[i].backward()
        losses[i] = None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "budget"),
    [pytest.param(first_in_first_out, 700_000, marks=pytest.mark.slow), (in_turns, 450_000)],
)
def test_backwards_in_the_order_of_forwards_are_within_the_budget(step, budget):
    """At the first backward all that later micro-batches keep is there; the bits are the plain."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(3))
    )
    plain, batches = copy.deepcopy(model), [(torch.randn(128, 16),) * 2 for _ in range(5)]
    schedsim.rematerialize(model, batches[0][0], budget, in_place=True, effort=0.2)
    for _ in range(3):
        step(model, batches)
        model.zero_grad()
    [reading] = AllocatorMeter().read(lambda: step(model, batches))
    resident = storage_bytes([*model.parameters(), batches[0]])
    assert resident + reading.peak_bytes <= session_in(model).peak_bytes <= budget
    assert budget < resident + _peak(plain, batches, step)
    for mine, its in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, its.grad)


def _peak(model, batches, step):
    [reading] = AllocatorMeter().read(lambda: step(model, batches))
    return reading.peak_bytes


@pytest.mark.slow
def test_another_order_is_told_and_planned_anew():
    """Backwards from the last call to the first, and later from the first to the last."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 64), nn.Tanh()) for _ in range(1)))
    model.append(nn.Linear(64, 16))
    batches = [(torch.randn(128, 16),) * 2 for _ in range(4)]
    schedsim.rematerialize(model, batches[0][0], 300_000, in_place=True, effort=0.2)

    def last_first(model, batches):
        sum(nn.functional.mse_loss(model(x), target) for x, target in batches).backward()

    for _ in range(3):
        last_first(model, batches)
        model.zero_grad()
    first_in_first_out(model, batches)
    model.zero_grad()
    with pytest.warns(ReplannedWarning, match="an order that was not seen before"):
        first_in_first_out(model, batches)
    model.zero_grad()
    first_in_first_out(model, batches)
    model.zero_grad()
    orders = [record.halves for record in session_in(model).plans.known.records]
    assert orders == [(0, 1, 2, 3, -4, -3, -2, -1), (0, 1, 2, 3, -1, -2, -3, -4)]
    [reading] = AllocatorMeter().read(lambda: first_in_first_out(model, batches))
    resident = storage_bytes([*model.parameters(), batches[0]])
    assert resident + reading.peak_bytes <= session_in(model).peak_bytes <= 300_000


def forward_first(model, x):
    """A forward without a backward, which is gone before the step."""
    return [float(model(x).square().mean()), _trained(model, x)]


def held_forward(model, x):
    """Its graph is there until the step is over."""
    first = model(x).square().mean()
    return [_trained(model, x), first.detach()]


def _trained(model, x):
    loss = model(x).square().mean()
    loss.backward()
    return loss.detach()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "share"),
    [pytest.param(forward_first, 0.8, marks=pytest.mark.slow), (held_forward, 0.6)],
)
def test_forwards_without_a_backward_do_not_keep_a_step_from_its_plan(step, share):
    """The step is measured all the same, and what such a forward keeps is there until its end."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(3))
    )
    plain, x = copy.deepcopy(model), torch.randn(128, 16)
    [reading] = AllocatorMeter().read(lambda: step(plain, x))
    expected = reading.result
    resident = storage_bytes([*model.parameters(), x])
    budget = resident + int(share * reading.peak_bytes)
    schedsim.rematerialize(model, x, budget, in_place=True, effort=0.2)
    for _ in range(7):
        step(model, x)
        model.zero_grad()
    [reading] = AllocatorMeter().read(lambda: step(model, x))
    predicted = session_in(model).peak_bytes
    assert predicted is not None
    assert resident + reading.peak_bytes <= predicted <= budget
    assert all(
        map(torch.equal, map(torch.as_tensor, reading.result), map(torch.as_tensor, expected))
    )
