"""Plans of steps of a model: captured once, at the level that gives the plain step."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from gelu_layers import LOSS, gelu_layers  # noqa: E402
from schedsim.validation.guards.differential import Difference  # noqa: E402
from schedsim.validation.guards.plan_variants import RoundingWarning  # noqa: E402
from schedsim.validation.whole_step import plan_maker  # noqa: E402
from schedsim.validation.whole_step.step_capture import BlockLevelWarning  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import UnsupportedError  # noqa: E402


def test_another_budget_takes_no_new_capture(monkeypatch):
    """What was captured for these inputs is planned again."""
    model, inputs = gelu_layers()
    module = schedsim.rematerialize(model, inputs, "90%", LOSS, effort=0.2)
    first = module.plan
    monkeypatch.setattr(plan_maker, "capture_step", None)
    module.replan(first.peak_bytes - 50_000)
    module(*inputs).backward()
    assert module.plan.peak_bytes <= first.peak_bytes - 50_000


def test_where_op_by_op_gives_another_step_blocks_are_planned(monkeypatch):
    """And a line says what differs; where blocks differ too, nothing is planned."""
    model, inputs = gelu_layers()
    differs = {"op": Difference("the loss is off by 0.5", rounding=False), "block": None}

    def compared(model, settings, planned, inputs, keywords):
        return "seen", differs[planned.captured.level]

    monkeypatch.setattr(plan_maker, "compare", compared)
    with pytest.warns(BlockLevelWarning, match="op by op its step is another: the loss is off"):
        module = schedsim.rematerialize(model, inputs, "90%", LOSS, effort=0.2)
    assert module.level == "block"
    differs["block"] = differs["op"]
    with pytest.warns(BlockLevelWarning), pytest.raises(UnsupportedError) as refused:
        schedsim.rematerialize(model, inputs, "90%", LOSS, effort=0.2)
    assert "by block is not the plain one" in refused.value.message


def test_a_difference_within_rounding_keeps_the_level_and_is_said(monkeypatch):
    """Unless blocks are the plain step to the bit."""
    model, inputs = gelu_layers()
    off = Difference("the loss is off by 1e-07", rounding=True)
    monkeypatch.setattr(plan_maker, "compare", lambda *_: ("seen", off))
    with pytest.warns(RoundingWarning, match="within rounding: the loss is off by 1e-07"):
        module = schedsim.rematerialize(model, inputs, "90%", LOSS, effort=0.2, level="op")
    assert module.level == "op"
