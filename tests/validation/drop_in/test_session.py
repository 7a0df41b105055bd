"""A session lives and dies with its model."""

from __future__ import annotations

import contextlib
import copy
import gc
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.drop_in_options import DropInOptions  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.drop_in.local_session import LocalSession  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning  # noqa: E402
from schedsim.validation.measure.quiet import quiet_stderr  # noqa: E402
from schedsim.validation.torch_private.profiler_records import is_profiling  # noqa: E402
from torch import nn  # noqa: E402
from torch.profiler import ProfilerActivity, profile, schedule  # noqa: E402

import schedsim  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_calls_of_a_rehearsal_are_not_those_of_the_loop(fails):
    """The loop's are there again behind it, whatever happens in it."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(8, 4)
    schedsim.rematerialize(model, x, "1MB", in_place=True, effort=0.1, check="never")
    session = session_in(model)
    held = model(x)
    before = list(session._step.calls.rows)
    with contextlib.suppress(ZeroDivisionError), session.rehearsing():
        model(x).sum().backward()
        assert len(session._step.calls.rows) == len(before) + 1
        assert 1 / (not fails)
    assert session._step.calls.rows == before
    assert not session.is_rehearsing
    held.sum().backward()


def test_a_line_is_said_once():
    """In warnings and in the report."""
    session = LocalSession(DropInOptions.read({"budget": 10**6}))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            session._tell("something", PlainStepWarning)
    assert [str(one.message) for one in said] == ["something"]
    assert session.check_note.count("something") == 1


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("num_skipped", [0, 1])
def test_a_profiler_with_a_schedule_sees_its_steps(num_skipped):
    """It begins between a step and the next one, where the record of the step is still on."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)), torch.randn(8, 16)
    schedsim.rematerialize(model, x, "1MB", in_place=True, effort=0.1)
    optimizer, seen = torch.optim.SGD(model.parameters()), []

    def ready(own):
        seen.append(sum(it.count for it in own.key_averages() if it.key == "aten::tanh"))

    steps = schedule(skip_first=num_skipped, wait=0, warmup=1, active=2, repeat=2)
    cpu = [ProfilerActivity.CPU]
    with quiet_stderr(), profile(activities=cpu, schedule=steps, on_trace_ready=ready) as own:
        for _ in range(8):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            own.step()
    assert len(seen) == 2
    assert min(seen) >= 2


@pytest.mark.slow
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
