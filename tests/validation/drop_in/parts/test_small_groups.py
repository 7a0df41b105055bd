"""Compiled parts in small groups, where large ones do not fit: by the backend and in place."""

from __future__ import annotations

import gc
import shutil

import pytest

torch = pytest.importorskip("torch")

from fused_steps import Branches, assert_close, left_by  # noqa: E402
from schedsim.validation.compiled.group_sizes import GroupSize  # noqa: E402
from schedsim.validation.drop_in import backend  # noqa: E402
from schedsim.validation.drop_in.backend import SESSIONS  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.drop_in.parts.traced_part import TracedPart  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import InfeasibleBudgetError  # noqa: E402

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler"
)


def by_backend(model, inputs, loss, budget):
    """The step, and its session."""
    torch._dynamo.reset()
    options = {
        "budget": budget,
        "compile": True,
        "extra_bytes": storage_bytes([inputs[1]]),
        "effort": 0.2,
    }
    module = torch.compile(model, backend=backend.schedsim, options=options)

    def session():
        return next(s for o, s in SESSIONS.rows.values() if o == options)

    return lambda x, target: loss(module(x), target), session


def in_place(model, inputs, loss, budget):
    """The step, and its session."""
    torch._dynamo.reset()
    extra = storage_bytes([inputs[1]])
    schedsim.rematerialize(
        model, inputs[:1], budget, in_place=True, compile=True, extra_bytes=extra, effort=0.2
    )
    return lambda x, target: loss(model(x), target), lambda: session_in(model)


ROOM, COMPILED_ROOM = 350_000, 250_000
"""Bytes within which the step of `branched` runs in small groups alone: op by op, and compiled."""


def branched():
    """A layer whose sum of parts takes more room in one group."""
    torch.manual_seed(0)
    inputs = torch.randn(512, 16), torch.randn(512, 16)
    return Branches(1), inputs, torch.nn.functional.mse_loss


def steps_within(make, budget):
    """Four steps of the branched model."""
    model, inputs, loss = branched()
    step, session = make(model, inputs, loss, budget)
    for _ in range(4):
        left_by(step, model, inputs)
    return model, inputs, loss, step, session()


@pytest.mark.slow
@pytest.mark.parametrize("make", [by_backend, in_place])
def test_small_groups_fit_less_than_large_ones(make, uncompiled, monkeypatch):
    model, inputs, loss, step, session = steps_within(make, ROOM)
    assert session.peak_bytes <= session.budget_bytes == ROOM
    assert "groups are small" in session.report()
    plain, *_ = branched()
    expected = left_by(lambda x, t: loss(plain(x), t), plain, inputs)
    assert_close(left_by(step, model, inputs), expected)
    del model, inputs, step, session  # another model would put the refusal off
    gc.collect()
    monkeypatch.setattr(TracedPart, "in_smaller_groups", lambda self: None)
    with pytest.raises(InfeasibleBudgetError) as refused:
        steps_within(make, ROOM)
    assert refused.value.plan.min_feasible_bytes > ROOM


@pytest.mark.slow
def test_groups_become_small_when_a_measured_step_is_planned(uncompiled):
    """The first step fits in large ones; what stands in their place is compared with the model."""
    model, inputs, loss = branched()
    step, session = in_place(model, inputs, loss, 380_000)
    assert session().parts[0].group_size is GroupSize.LARGE
    plain, *_ = branched()
    expected = left_by(lambda x, t: loss(plain(x), t), plain, inputs)
    for _ in range(5):
        assert_close(left_by(step, model, inputs), expected)
    assert session().parts[0].group_size is GroupSize.MEDIUM
    assert session().peak_bytes <= 380_000
    assert session().num_compared == 1


@pytest.mark.slow
def test_a_backward_of_large_groups_may_follow_when_groups_are_small(uncompiled):
    model, inputs, loss = branched()
    step, session = in_place(model, inputs, loss, "100%")
    plain, *_ = branched()
    expected = left_by(lambda x, t: loss(plain(x), t), plain, inputs)
    value = step(*inputs)
    [part] = session().parts
    assert part.in_smaller_groups() is not None
    value.backward()
    assert_close([p.grad for p in model.parameters()], expected[1:])


@pytest.mark.slow
def test_parts_of_a_step_that_breaks(uncompiled):
    """All parts of a step that does not fit."""

    class Broken(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = Branches(1), Branches(1)

        def forward(self, x):
            x = self.one(x)
            torch._dynamo.graph_break()
            return self.other(x)

    def made():
        torch.manual_seed(0)
        return Broken()

    _, inputs, loss = branched()
    plain = made()
    expected = left_by(lambda x, t: loss(plain(x), t), plain, inputs)
    model, budget = made(), 1000
    for _ in range(8):
        try:
            step, session = by_backend(model, inputs, loss, budget)
            for _ in range(5):
                assert_close(left_by(step, model, inputs), expected)
            break
        except InfeasibleBudgetError as error:
            budget = error.plan.min_feasible_bytes
    assert all(part.group_size is not GroupSize.LARGE for part in session().parts)


@pytest.mark.slow
def test_a_refusal_names_the_least_of_both(uncompiled):
    with pytest.raises(InfeasibleBudgetError) as refused:
        steps_within(by_backend, 1000)
    assert refused.value.plan.min_feasible_bytes < ROOM


@pytest.mark.slow
def test_where_large_groups_fit_they_run(uncompiled):
    *_, session = steps_within(in_place, "100%")
    assert not any(part.group_size is not GroupSize.LARGE for part in session.parts)


@pytest.mark.slow
@needs_compiler
def test_the_measured_peak_is_within_the_budget():
    model, inputs, _, step, session = steps_within(by_backend, COMPILED_ROOM)
    assert "groups are small" in session.report()
    [reading] = AllocatorMeter().read(lambda: step(*inputs).backward())
    resident = storage_bytes([list(model.parameters()), inputs])
    assert resident + reading.peak_bytes <= COMPILED_ROOM
