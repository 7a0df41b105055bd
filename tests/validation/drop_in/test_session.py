"""Steps of several graphs share one budget."""

from __future__ import annotations

import copy
import gc
import logging
import re
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in import session as session_module  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning, ReplannedWarning  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from schedsim.validation.measure.allocator import AllocatorRecord  # noqa: E402
from schedsim.validation.torch_private.profiler_records import is_profiling  # noqa: E402
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


def test_no_record_begins_in_the_forward_in_which_one_ended(monkeypatch):
    """A range that is open there writes to the memory of the record that ended."""
    told = []

    class Meter:
        def start(self):
            told.append("start")

        def mark(self, watched=()):
            pass

        def stop(self):
            told.append("stop")
            return []

    forward_begins = session_module.Session.forward_begins

    def noted(self, *arguments):
        told.append("forward")
        return forward_begins(self, *arguments)

    monkeypatch.setattr(session_module, "outside_meter", lambda device: Meter())
    monkeypatch.setattr(session_module.Session, "forward_begins", noted)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    schedsim.rematerialize(model, torch.ones(8, 4), 10**9, in_place=True, effort=0.2, check="never")
    for _ in range(4):  # no step of these can be read: each asks for another record
        model(torch.ones(8, 4)).sum().backward()
    forwards = " ".join(told).split("forward")
    assert sum("start" in forward for forward in forwards) >= 2
    assert not any("stop" in forward and "start" in forward for forward in forwards)


def test_no_record_begins_in_a_forward_in_which_planning_ended_one(monkeypatch):
    """As where a step calls its model at several lengths: a longer line is planned within it."""
    told = []

    def noted(owner, name, what):
        function = getattr(owner, name)

        def call(self, *arguments):
            told.append(what)
            return function(self, *arguments)

        monkeypatch.setattr(owner, name, call)

    noted(AllocatorRecord, "start", "start")
    noted(AllocatorRecord, "_end", "end")
    noted(session_module.Session, "forward_begins", "(")
    noted(session_module.Session, "forward_ends", ")")
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)))
    x = torch.randn(64, 16)
    torch._dynamo.reset()
    schedsim.rematerialize(model, x, "120%", in_place=True, effort=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        sum(model(x[:num]).square().mean() for num in (64, 32, 48)).backward()
        optimizer.step()
        optimizer.zero_grad()
    inside = re.findall(r"\(([^()]*)\)", " ".join(told))
    assert any("end" in forward for forward in inside)
    assert not any(re.search("end.* start$", forward.strip()) for forward in inside)


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


def test_a_model_is_freed_with_its_plans_and_its_record():
    """In the midst of a measured step, too: Dynamo keeps neither, and the profiler is off."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)), torch.randn(8, 16)
    schedsim.rematerialize(model, x, "1MB", in_place=True, effort=0.1)
    session = weakref.ref(session_in(model))
    model(x).sum().backward()
    assert is_profiling()
    freed = weakref.ref(model)
    del model
    for _ in range(3):  # what one collection frees tells Dynamo to free more
        gc.collect()
    assert freed() is None
    assert session() is None
    assert not is_profiling()


def test_no_record_begins_where_it_may_not(monkeypatch):
    """As in the closure of an optimizer."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)), torch.randn(8, 16)
    schedsim.rematerialize(model, x, "1MB", in_place=True, effort=0.1)
    with monkeypatch.context() as patched:
        patched.setattr(session_module, "may_record", lambda: False)
        model(x).square().sum().backward()
        assert not is_profiling()
    model(x).square().sum().backward()
    assert is_profiling()
    schedsim.restore(model)


def test_a_step_that_never_ends_keeps_no_other_model_from_its_plan():
    """As of a loop that failed, and whose frames a debugger holds: another model is measured."""
    torch.manual_seed(0)
    x = torch.randn(32, 8)
    first, second = (nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
    for model in (first, second):
        schedsim.rematerialize(model, x, 10**9, in_place=True, effort=0.1, check="never")
    held = first(x)
    assert session_in(first)._meter is not None
    for _ in range(12):
        second(x).square().mean().backward()
    assert held.grad_fn is not None
    assert session_in(second).plans.known.records


class Scaled(nn.Module):
    """Weights over their norm, which is no part of the gradient: DoRA scales so."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x):
        norm = self.inner.weight.norm(dim=1)
        torch._dynamo.graph_break()
        return self.inner(x) / norm.detach()


def test_a_record_ends_where_a_part_has_no_backward():
    """At the optimizer's step, when no backward can come; a meter that follows reads all."""
    torch.manual_seed(0)
    model, x = Scaled(), torch.randn(64, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedsim.rematerialize(model, x, "1MB", in_place=True, effort=0.1)
    recorded = False
    for _ in range(4):
        model(x).square().mean().backward()
        recorded |= is_profiling()
        optimizer.step()
        assert not is_profiling()
    assert recorded
    [reading] = AllocatorMeter().read(lambda: model(x).square().mean().backward())
    assert reading.peak_bytes > 0


def test_steps_under_another_profiler_are_measured_later():
    """The loss is not within the budget so long, which is said once; the next step tells."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)), torch.randn(64, 16)

    def loss(y):
        return (y.repeat(40, 1).exp() - 1).square().mean()

    schedsim.rematerialize(model, x, 10**7, in_place=True, effort=0.1, check="never")
    session = session_in(model)

    def profiled_step():
        with torch.profiler.profile(profile_memory=True):
            loss(model(x)).backward()

    with pytest.warns(PlainStepWarning, match="not measured under another profiler"):
        profiled_step()
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlainStepWarning)
        profiled_step()
    assert not session.plans.known.records
    for _ in range(3):
        loss(model(x)).backward()
    assert len(session.plans.known.records) == 1
    assert session.peak_bytes > 40 * x.numel() * 4


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


@pytest.mark.parametrize(("step", "budget"), [(first_in_first_out, 700_000), (in_turns, 450_000)])
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


def test_what_another_model_keeps_is_counted_in_a_step_between_its_halves():
    """The steps of a critic within that of what it judges, each with a budget."""
    torch.manual_seed(0)
    maker, critic = (
        nn.Sequential(
            *(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(3))
        )
        for _ in range(2)
    )
    x, budget = torch.randn(256, 16), 600_000
    other = 2 * storage_bytes([*maker.parameters()])
    for model in (critic, maker):
        schedsim.rematerialize(model, x, budget, in_place=True, effort=0.2, extra_bytes=other)

    def step():
        made = maker(x)
        critic(made.detach()).square().mean().backward()
        critic(made).mean().backward()
        for model in (critic, maker):
            model.zero_grad()

    for _ in range(6):
        step()
    [reading] = AllocatorMeter().read(step)
    resident = storage_bytes([x, *maker.parameters(), *critic.parameters()])
    assert 0.85 * budget < resident + reading.peak_bytes <= budget


def test_a_backward_that_keeps_the_graph_is_told_of():
    """What a schedule would free as it goes stays; the gradients are the plain step's."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 2)), torch.randn(128, 16)
    plain, found = copy.deepcopy(model), []
    schedsim.rematerialize(model, x, "1MB", in_place=True, effort=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlainStepWarning)
        model(x).square().mean().backward()
        model.zero_grad()

    def step(model):
        one, other = model(x).unbind(1)
        conflict = torch.autograd.grad(one.sum(), model[0].weight, retain_graph=True)
        (one.mean() + other.square().mean()).backward()
        found.append([*conflict, *(p.grad for p in model.parameters())])

    with pytest.warns(PlainStepWarning, match="retain_graph=True.*may exceed the budget"):
        step(model)
    assert "retain_graph" in schedsim.drop_in_report(model)
    step(plain)
    assert all(map(torch.equal, *found))


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


def test_a_graph_that_is_held_across_steps_is_resident():
    """As of a look at the outputs, which stay in a global variable: steps end all the same."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(3))
    )
    plain, x = copy.deepcopy(model), torch.randn(128, 16)
    [reading] = AllocatorMeter().read(lambda: _trained(plain, x))
    resident = storage_bytes([*model.parameters(), x])
    budget = resident + int(1.8 * reading.peak_bytes)
    schedsim.rematerialize(model, x, budget, in_place=True, effort=0.2, check="never")
    for _ in range(2):
        _trained(model, x)
        model.zero_grad()
    held = []
    [look] = AllocatorMeter().read(lambda: held.append(model(x)))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(20):
            _trained(model, x)
            model.zero_grad()
    session = session_in(model)
    assert [str(one.message) for one in said if "is held through many steps" in str(one.message)]
    assert len(session._calls.rows) == 1
    [reading] = AllocatorMeter().read(lambda: _trained(model, x))
    kept = sum(call.kept_bytes for call in session._left)
    assert 0 < kept <= look.peak_bytes
    assert resident + kept + reading.peak_bytes <= session.peak_bytes <= budget
    held[0].square().mean().backward()
    assert session._left_bytes() == 0


class LossInside(nn.Sequential):
    def forward(self, x):
        return super().forward(x).square().mean()


def test_losses_that_a_loop_collects_have_room():
    """A few bytes more in each step: counted, and not planned for each time."""
    torch.manual_seed(0)
    model, x = LossInside(nn.Linear(8, 8), nn.Tanh()), torch.randn(256, 8)
    schedsim.rematerialize(model, x, 10**9, in_place=True, effort=0.1, check="never")
    known, losses, seen = session_in(model).plans.known, [], []
    for _ in range(70):
        loss = model(x)
        seen.append(known.resident_bytes)
        loss.backward()
        losses.append(loss.detach())
        model.zero_grad()
    state = storage_bytes([*model.parameters()])
    assert all(bytes_ >= state + 4 * k for k, bytes_ in enumerate(seen))
    assert len(set(seen)) == 3  # without a loss, and with room for 64 and for 256


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


@pytest.mark.parametrize(("step", "share"), [(forward_first, 0.8), (held_forward, 0.6)])
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
