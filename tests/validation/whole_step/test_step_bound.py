"""A compiled step that measures over its budget is planned tighter, or refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fused_steps import gated  # noqa: E402
from schedsim.validation.whole_step import step_bound  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import InfeasibleBudgetError  # noqa: E402


def measuring(monkeypatch, extra):
    """As if every step took `extra` bytes more than planned."""
    seen = []

    def peak(model, settings, planned, given):
        seen.append(planned.plan.peak_bytes)
        return planned.plan.peak_bytes + extra

    monkeypatch.setattr(step_bound, "_peak", peak)
    return seen


@pytest.mark.slow
def test_a_plan_that_measures_above_is_tightened(monkeypatch, uncompiled):
    model, inputs, loss = gated(3)
    seen = measuring(monkeypatch, 500)
    module = schedsim.rematerialize(
        model, inputs, "100%", loss, compile=True, effort=1.0, time_limit_s=120.0
    )
    planned = module.prepare(*inputs)
    assert len(seen) > 1
    assert seen[-1] < seen[0]
    assert planned.measured_bytes == seen[-1] + 500 <= module.budget_bytes


@pytest.mark.slow
def test_what_cannot_be_kept_is_refused(monkeypatch, uncompiled):
    model, inputs, loss = gated(2)
    measuring(monkeypatch, 10**9)
    with pytest.raises(InfeasibleBudgetError, match=r"measures 1\.00 GB"):
        schedsim.rematerialize(
            model, inputs, "100%", loss, compile=True, effort=1.0, time_limit_s=120.0
        )


@pytest.mark.slow
def test_a_refusal_names_bytes_that_were_measured(monkeypatch, uncompiled):
    """The least budget of the plans is none for the step, which takes 5 kB more."""
    model, inputs, loss = gated(2)
    options = {"compile": True, "effort": 0.5}
    measuring(monkeypatch, 5_000)

    def least_beyond(budget):
        with pytest.raises(InfeasibleBudgetError) as refused:
            schedsim.rematerialize(model, inputs, budget, loss, **options)
        return refused.value.plan.min_feasible_bytes

    planned = least_beyond(10_000)
    measured = least_beyond(planned)
    assert planned < measured <= planned + 5_000
    module = schedsim.rematerialize(model, inputs, measured, loss, **options)
    assert module.prepare(*inputs).measured_bytes <= measured
