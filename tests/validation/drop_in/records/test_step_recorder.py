"""When a step of a loop is recorded, and when not."""

from __future__ import annotations

import re
import warnings

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in import local_session  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.drop_in.local_session import LocalSession  # noqa: E402
from schedsim.validation.drop_in.records import step_recorder  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning  # noqa: E402
from schedsim.validation.measure import AllocatorMeter  # noqa: E402
from schedsim.validation.measure.allocator import AllocatorRecord  # noqa: E402
from schedsim.validation.torch_private.profiler_records import is_profiling  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


@pytest.mark.slow
def test_no_record_begins_in_the_forward_in_which_one_ended(monkeypatch):
    """A range that is open there writes to the memory of the record that ended."""
    told = []

    class Meter:
        held_blocks = {}  # noqa: RUF012

        def start(self):
            told.append("start")

        def mark(self, watched=()):
            pass

        def stop(self):
            told.append("stop")
            return []

    forward_begins = LocalSession.forward_begins

    def noted(self, *arguments):
        told.append("forward")
        return forward_begins(self, *arguments)

    monkeypatch.setattr(step_recorder, "outside_meter", lambda device: Meter())
    monkeypatch.setattr(LocalSession, "forward_begins", noted)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    schedsim.rematerialize(model, torch.ones(8, 4), 10**9, in_place=True, effort=0.2, check="never")
    for _ in range(4):  # no step of these can be read: each asks for another record
        model(torch.ones(8, 4)).sum().backward()
    forwards = " ".join(told).split("forward")
    assert sum("start" in forward for forward in forwards) >= 2
    assert not any("stop" in forward and "start" in forward for forward in forwards)


@pytest.mark.slow
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
    noted(LocalSession, "forward_begins", "(")
    noted(LocalSession, "forward_ends", ")")
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


@pytest.mark.slow
def test_no_record_begins_where_it_may_not(monkeypatch):
    """As in the closure of an optimizer."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)), torch.randn(8, 16)
    schedsim.rematerialize(model, x, "1MB", in_place=True, effort=0.1)
    with monkeypatch.context() as patched:
        patched.setattr(local_session, "may_record", lambda: False)
        model(x).square().sum().backward()
        assert not is_profiling()
    model(x).square().sum().backward()
    assert is_profiling()
    schedsim.restore(model)


@pytest.mark.slow
def test_a_step_that_never_ends_keeps_no_other_model_from_its_plan():
    """As of a loop that failed, and whose frames a debugger holds: another model is measured."""
    torch.manual_seed(0)
    x = torch.randn(32, 8)
    first, second = (nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
    for model in (first, second):
        schedsim.rematerialize(model, x, 10**9, in_place=True, effort=0.1, check="never")
    held = first(x)
    assert session_in(first)._recorder.is_on
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


@pytest.mark.slow
def test_a_record_ends_where_a_part_has_no_backward():
    """At the optimizer's step, when no backward can come; a meter that follows reads all.

    What is recorded behind two of these is the optimizer's own code, which ends where this goes on.
    """
    torch.manual_seed(0)
    model, x = Scaled(), torch.randn(64, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedsim.rematerialize(model, x, "1MB", in_place=True, effort=0.1)
    recorder, recorded = session_in(model)._recorder, 0
    for _ in range(6):
        model(x).square().mean().backward()
        recorded += recorder.is_on
        assert recorder.is_on == is_profiling()
        optimizer.step()
        assert not recorder.is_on
    assert recorded
    assert not is_profiling()
    [reading] = AllocatorMeter().read(lambda: model(x).square().mean().backward())
    assert reading.peak_bytes > 0


@pytest.mark.slow
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
