"""Costs on the device of a model: measured, or its data sheet's where it runs no kernels."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.costs import device_costs, roofline_costs  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


@pytest.fixture
def dry(monkeypatch):
    """This machine's processor as a device without times, as the dry one is."""
    monkeypatch.setenv("SCHEDSIM_DRY_CUDA", "a100-80gb")
    path = "schedsim.validation.costs.own_device.has_times"
    monkeypatch.setattr(path, lambda device: False)


def a_model():
    """A wide product and an activation of its output, whose true times are far apart."""
    torch.manual_seed(0)
    parts = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256))
    return parts, (torch.randn(64, 256), torch.randn(64, 256))


def sheet_times(captured):
    """Seconds by the data sheet."""
    return roofline_costs(captured, "a100-80gb").time_s


def test_times_are_measured_where_there_are_any():
    model, inputs = a_model()
    captured = capture(model, inputs, nn.functional.mse_loss)
    found = device_costs(captured, torch.device("cpu"))
    assert found.source.startswith("measured")
    assert found.time_s != sheet_times(captured)


def test_without_times_the_data_sheet_has_them(dry):
    model, inputs = a_model()
    captured = capture(model, inputs, nn.functional.mse_loss)
    found = device_costs(captured, torch.device("cpu"))
    assert found.time_s == sheet_times(captured)
    assert "no times" in found.source


def test_a_step_is_planned_by_the_data_sheet(dry):
    """By the host's time between two launches, a product costs what an activation does."""
    model, inputs = a_model()
    module = schedsim.rematerialize(model, inputs, "100%", nn.functional.mse_loss)
    expected = sheet_times(capture(model, inputs, nn.functional.mse_loss))
    graph = module.prepare(*inputs).captured.workload
    assert [op.time_s for op in graph.ops] == list(expected.values())


@pytest.mark.slow
def test_a_part_of_a_loop_is_planned_by_the_data_sheet(dry):
    model, (x, _) = a_model()
    schedsim.rematerialize(model, x, "8MiB", in_place=True)
    for _ in range(2):
        model(x).sum().backward()
        model.zero_grad()
    parts = [part for part in session_in(model).parts if part.is_measured]
    assert parts
    for part in parts:
        assert {op.name: op.time_s for op in part.graph.ops} == sheet_times(part)
