"""Schedules of ops compiled by inductor."""

from __future__ import annotations

import shutil

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.costs import measured_costs  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from schedsim.validation.op_level.inductor import compile_schedule  # noqa: E402
from step_models import DropoutMLP, make_step  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="there is no C++ compiler"
)


@pytest.mark.slow
@needs_compiler
def test_a_compiled_schedule_gives_the_gradients_within_rounding_and_still_recomputes():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(6)))
    inputs = torch.randn(512, 64), torch.randn(512, 64)
    captured = capture(model, inputs, nn.functional.mse_loss)
    captured = captured.with_costs(measured_costs(captured, "cpu"))
    everything = schedsim.Schedule.store_all(captured.graph)
    most = schedsim.simulate(captured.graph, everything).peak_bytes
    plan = schedsim.plan(captured.graph, int(0.85 * most), effort=0.3)
    module = captured.module(plan.schedule)
    found, peaks = [], []
    for compiled in (False, True):
        if compiled:
            compile_schedule(module)
        model.zero_grad()
        loss = module(*inputs)
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters())])
        assert sum(module.run_counts.values()) == len(plan.schedule.names)
        model.zero_grad()
        [reading] = AllocatorMeter().read(lambda: module(*inputs).backward())
        peaks.append(storage_bytes([list(model.parameters()), inputs]) + reading.peak_bytes)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-8)
    # The plan's peak is no bound here, but what is recomputed is not kept.
    assert peaks[0] <= plan.peak_bytes
    assert peaks[1] < 0.97 * most


def test_schedules_that_cannot_be_compiled_are_refused_with_the_reason():
    torch.manual_seed(0)
    model, inputs = DropoutMLP(), (torch.randn(16, 32), torch.randn(16, 32))
    captured = capture(model, inputs, nn.functional.mse_loss)
    names = list(captured.graph.op_names)
    dropout = next(name for name in names if "dropout" in name)
    at = names.index("loss.grad") + 1
    module = captured.module(schedsim.Schedule.from_names([*names[:at], dropout, *names[at:]]))
    with pytest.raises(schedsim.UnsupportedError, match="repeats random ops"):
        compile_schedule(module)
    model, inputs, loss = make_step("resnet")
    captured = capture(model, inputs, loss)
    module = captured.module(schedsim.Schedule.store_all(captured.graph))
    with pytest.raises(schedsim.UnsupportedError, match="changes buffers"):
        compile_schedule(module)
