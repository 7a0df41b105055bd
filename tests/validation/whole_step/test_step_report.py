"""The report of a planned step: its parts add up, and JSON says the same."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.whole_step.step_report import counted, report_dict, report_lines  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


def test_what_is_counted_adds_up_to_the_peak():
    """In the report for people too, with where each number is from."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    x = torch.randn(4, 8)
    module = schedsim.rematerialize(
        model, (x,), "100%", lambda y: y.square().mean(), effort=0.1, check="never"
    )
    planned = module.prepare(x)
    found = counted(planned)
    assert sum(found.values()) == planned.plan.peak_bytes
    assert found["parameters"] == 4 * sum(p.numel() for p in model.parameters())
    told = report_dict(planned)
    assert told["counted_bytes"] == found
    assert told["peak_bytes"] == planned.plan.peak_bytes
    lines = report_lines(planned)
    assert f"{len(planned.captured.workload.op_names)} ops" in lines[0]
    assert any(line.startswith("  gradients") and "where they are made" in line for line in lines)
    assert "\n".join(lines) == module.report()
