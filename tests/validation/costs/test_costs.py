"""Costs of ops: measured, by roofline, calibrated and cached."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from schedsim.validation.capture import capture
from schedsim.validation.costs import fit_calibration, measured_costs, roofline_costs
from schedsim.validation.costs import measured as measuring
from schedsim.validation.costs.work import work_of
from step_models import make_step
from torch import nn

from schedsim import Schedule, simulate
from schedsim.errors import SchedsimError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SCHEDSIM_CACHE_DIR", str(tmp_path))
    return tmp_path


def two_layers(dtype=torch.float32):
    """Batch 64, widths 32 and 32: equal products share one measurement."""
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)).to(dtype)
    inputs = torch.randn(64, 32, dtype=dtype), torch.zeros(64, dtype=torch.long)
    return capture(model, inputs, F.cross_entropy)


def call_named(captured, name):
    return next(call for call in captured.program.calls if call.name == name)


def test_each_distinct_op_is_measured_once(monkeypatch):
    """The two addmm are one op of one shape; views and the hand-over to autograd cost nothing."""
    captured = two_layers()
    measured = []
    original = measuring.measure_call

    def note(program, call, device, target_s):
        measured.append(call.name)
        return original(program, call, device, target_s)

    monkeypatch.setattr(measuring, "measure_call", note)
    costs = measured_costs(captured, "cpu", target_s=0.0)
    assert "0.addmm" in measured
    assert "2.addmm" not in measured
    assert costs.time_s["0.addmm"] == costs.time_s["2.addmm"] > 0
    assert costs.time_s["loss.grad"] == 0
    assert set(costs.time_s) == set(captured.graph.op_names)
    # Again: everything comes from the cache, in another process too.
    measured.clear()
    assert measured_costs(captured, "cpu").time_s == costs.time_s
    assert measured == []
    graph = captured.with_costs(costs).graph
    assert simulate(graph, Schedule.store_all(graph)).makespan_s == pytest.approx(
        sum(costs.time_s.values())
    )


def test_the_cache_is_keyed_by_environment(own_cache, monkeypatch):
    """Another number of threads is another file; a broken file is measured anew."""
    captured = two_layers()
    measured_costs(captured, "cpu", target_s=0.0)
    (file,) = (own_cache / "profiles").iterdir()
    file.write_text("not json")
    measured_costs(captured, "cpu", target_s=0.0)
    assert json.loads(file.read_text())["schema"] == "schedsim.profiles/1"
    changed = dict(measuring.environment(torch.device("cpu")), threads="999")
    monkeypatch.setattr(measuring, "environment", lambda device: changed)
    measured_costs(captured, "cpu", target_s=0.0)
    assert len(list((own_cache / "profiles").iterdir())) == 2


def test_workspaces_are_from_the_allocators_record():
    """A convolution's backward lays its operands out anew; a ReLU needs nothing."""
    model, inputs, loss = make_step("resnet")
    captured = capture(model, inputs, loss)
    costs = measured_costs(captured, "cpu", target_s=0.0)
    assert costs.workspace_bytes["blocks.0.relu.relu"] == 0
    convolutions = [n for n in costs.workspace_bytes if n.startswith("grad") and "convolution" in n]
    assert any(costs.workspace_bytes[name] > 0 for name in convolutions)
    graph = captured.with_costs(costs).graph
    name = max(convolutions, key=costs.workspace_bytes.__getitem__)
    op = graph.ops[graph.op_index(name)]
    assert op.workspace_bytes == costs.workspace_bytes[name]
    assert costs.size_bytes == {}  # tracing had every output right


def test_measuring_leaves_the_generator_alone():
    model, inputs, loss = make_step("mlp")
    captured = capture(model, inputs, loss)
    before = torch.get_rng_state()
    measured_costs(captured, "cpu", target_s=0.0)
    assert torch.equal(before, torch.get_rng_state())


def test_flops_and_bytes_by_hand():
    """64 x 32 x 32: 2 x 64 x 32 x 32 flops; 64 x 32 in and out, 32 x 32 of weights, 32 of bias."""
    captured = two_layers()
    work = work_of(captured.program, call_named(captured, "0.addmm"))
    assert work.flops == 2 * 64 * 32 * 32
    assert work.moved_bytes == 4 * (2 * 64 * 32 + 32 * 32 + 32)
    assert (work.kind, work.dtype) == ("matmul", "fp32")
    relu = work_of(captured.program, call_named(captured, "1.relu"))
    assert (relu.kind, relu.moved_bytes) == ("memory", 4 * 2 * 64 * 32)


def test_attention_flops():
    """Two products forward, five backward, over B H T^2 d multiply-adds each."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x):
            x = x * self.scale
            return F.scaled_dot_product_attention(x, x, x).sum()

    captured = capture(Attention(), (torch.randn(2, 3, 16, 8),))
    once = 2 * 2 * 3 * 16 * 16 * 8
    works = {
        name: work_of(captured.program, call_named(captured, name))
        for name in ("flash_attention", "grad.flash_attention")
    }
    assert works["flash_attention"].flops == 2 * once
    assert works["grad.flash_attention"].flops == 5 * once
    assert works["flash_attention"].kind == "attention"


def test_roofline_of_substituted_attention():
    """CUDA's flash kernel counted on a machine without it: the same products as above."""
    model = nn.Linear(8, 8, bias=False).to(torch.bfloat16)

    def loss(output):
        x = output.view(2, 16, 2, 4).transpose(1, 2)
        return F.scaled_dot_product_attention(x, x, x).float().sum()

    x = torch.zeros(2, 16, 8, dtype=torch.bfloat16)
    captured = capture(model, (x,), loss, kernels="cuda")
    work = work_of(captured.program, call_named(captured, "loss.flash_attention"))
    # The width of 4 is padded to 8, which the kernel does compute.
    assert work.flops == 2 * 2 * 2 * 2 * 16 * 16 * 8
    assert roofline_costs(captured, "h100").time_s["grad.loss.flash_attention"] > 0


def test_roofline_of_a_device_elsewhere():
    """By the data sheet of the A100: 19.5 Tflop/s in fp32, 312 in bf16, 2039 GB/s."""
    costs = roofline_costs(two_layers(), "a100-80gb")
    moved = 4 * (2 * 64 * 32 + 32 * 32 + 32)
    assert costs.time_s["0.addmm"] == pytest.approx(max(131072 / 19.5e12, moved / 2039e9))
    half = roofline_costs(two_layers(torch.bfloat16), "a100-80gb")
    assert half.time_s["1.relu"] == pytest.approx(costs.time_s["1.relu"] / 2)
    with pytest.raises(SchedsimError, match="unknown"):
        roofline_costs(two_layers(), "a1000")


def test_calibration_makes_the_roofline_add_up(tmp_path):
    """Fitted to a profile, the roofline of the same graph takes the measured time in all."""
    captured = two_layers()
    profile = measured_costs(captured, "cpu", target_s=0.0)
    fitted = fit_calibration(captured, profile, "cpu")
    fitted.save(tmp_path / "cpu.json")
    costs = roofline_costs(captured, "cpu", tmp_path / "cpu.json")
    # Ops quicker than twice the start of a kernel are left out of the fit.
    slack = 3 * fitted.launch_s * len(profile.time_s)
    assert sum(costs.time_s.values()) == pytest.approx(sum(profile.time_s.values()), abs=slack)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "cannot be read"),
        ('{"schema": "other"}', "no calibration"),
        ('{"schema": "schedsim.calibration/1", "efficiency": {"matmul": 0}}', "efficiency.matmul"),
        ('{"schema": "schedsim.calibration/1", "launch_s": -1}', "launch_s"),
    ],
)
def test_bad_calibration_files(tmp_path, document, message):
    file = tmp_path / "calibration.json"
    file.write_text(document)
    with pytest.raises(SchedsimError, match=message):
        roofline_costs(two_layers(), "cpu", file)


def test_the_wrong_device_is_refused():
    with pytest.raises(SchedsimError, match="cannot be measured on cuda"):
        measured_costs(two_layers(), "cuda")


def test_times_from_the_cache_say_how_old_they_are(monkeypatch):
    """And are measured again where that is asked for; what is measured then is kept."""
    captured = two_layers()
    assert measured_costs(captured, "cpu", target_s=0.001).notes == ()
    later = measuring.time.time() + 7200
    monkeypatch.setattr(measuring.time, "time", lambda: later)
    (note,) = measured_costs(captured, "cpu", target_s=0.001).notes
    assert note.startswith("times of ")
    assert "measured 2 hours ago, spread " in note
    assert note.endswith("--remeasure measures them again")
    assert note in captured.with_costs(measured_costs(captured, "cpu")).notes
    again = measured_costs(captured, "cpu", use_cache=False, target_s=0.001)
    assert again.notes == ()
    assert measured_costs(captured, "cpu").time_s == again.time_s
