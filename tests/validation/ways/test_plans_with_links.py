"""Plans made with a link on the command line: applied in Python, validated, priced."""

from __future__ import annotations

import json
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.steps import MeasuredSteps  # noqa: E402
from schedsim.validation.targets import capture_target, load_target  # noqa: E402
from tiers import slow_where  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.cli.app import run as main  # noqa: E402

FILE = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
              for _ in range(6))
    return nn.Sequential(*blocks), (torch.randn(512, 64), torch.randn(512, 64)), LOSS

LOSS = nn.functional.mse_loss
"""
GPT = "model:gpt2,layers=3,hidden=32,heads=2,vocab=97,seq=32,batch=8,dropout=0.1"
UNET = "model:unet,levels=2,width=4,image=64,batch=2"
QUICK = ["--link", "10TB/s", "--effort", "0.1"]


@pytest.fixture
def line(tmp_path, monkeypatch):
    """The target's text: a line of blocks in a file."""
    (tmp_path / "a_line.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    yield "a_line.py:build"
    sys.modules.pop("a_line", None)


def printed(capsys, *call):
    """The JSON that a call prints."""
    assert main([*call, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def gradients(model, step):
    """Loss and gradients of a step from a fixed start."""
    model.zero_grad(set_to_none=False)
    torch.manual_seed(3)
    loss = step()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


def planned(capsys, text, share, *more):
    """A plan of `text` within `share` of its store-all peak, in plan.json."""
    most = printed(capsys, "plan", text, "--mem", "1GB", *more)["peak_bytes"]
    call = ("plan", text, "--mem", str(int(share * most)), *QUICK, *more)
    return printed(capsys, *call, "-o", "plan.json")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "share"),
    slow_where(
        [("line", 0.55), ("line", 0.7), ("gpt", 0.55), ("gpt", 0.7)],
        lambda case: case != ("gpt", 0.55),
    ),
)
def test_a_plan_with_a_link_trains_and_its_memory_is_as_predicted(line, which, share, capsys):
    text = line if which == "line" else GPT
    plan = planned(capsys, text, share)
    assert any(name.startswith("h2d:") for name in plan["schedule"])
    assert not any(name.endswith(":a0") for name in plan["schedule"])  # the caller holds it
    target = load_target(text, "cpu")
    model, inputs, loss = target.model, target.inputs, target.loss
    plain = MeasuredSteps(target, capture_target(target, rounds=0), {})
    expected = gradients(model, lambda: plain.modules["plain"](*inputs, **target.keywords))
    module = schedsim.apply(model, "plan.json", inputs or dict(target.keywords), loss)
    assert all(
        map(torch.equal, expected, gradients(model, lambda: module(*inputs, **target.keywords)))
    )
    assert module.run_counts == {
        name: plan["schedule"].count(name) for name in set(plan["schedule"])
    }
    report = printed(capsys, "validate", text, "plan.json", "--rounds", "0")
    assert report["holds"]
    mine, its = report["predicted"], report["measured"]
    assert mine["peak_bytes"] == plan["peak_bytes"]
    assert its["peak_bytes"] <= mine["peak_bytes"] + 5056 * 4  # random states of dropout
    # Which blocks are copied depends on measured times. A copy that is counted until it has ended
    # ends at once here: of some plans, an activation of a block is gone before the peak.
    assert its["peak_bytes"] >= 0.96 * mine["peak_bytes"]
    assert its["peak_bytes"] <= plan["budget_bytes"] + 5056 * 4
    # An output that the loss lets go of before its copy is never in host memory.
    assert 0 < its["host_peak_bytes"] <= mine["host_peak_bytes"]
    assert module._plans.last.module.mover.pool.peak_bytes == its["host_peak_bytes"]
    # Two steps of an optimizer, then the same again.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        module(*inputs, **target.keywords).backward()
        optimizer.step()
    assert module._plans.last.module.mover.pool.used_bytes == 0


@pytest.mark.slow
def test_blocks_that_are_no_line_copy_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    plan = planned(capsys, UNET, 0.8)
    assert any(name.startswith("h2d:") for name in plan["schedule"])
    target = load_target(UNET, "cpu")
    schedsim.apply(target.model, "plan.json", target.inputs, target.loss)
    report = printed(capsys, "validate", UNET, "plan.json", "--rounds", "0")
    assert report["holds"]
    assert report["measured"]["host_peak_bytes"] == report["predicted"]["host_peak_bytes"] > 0


@pytest.mark.slow
def test_a_plan_with_a_link_that_copies_nothing_is_applied(line, capsys):
    plan = planned(capsys, line, 1.0)
    assert not any(":" in name for name in plan["schedule"])
    target = load_target(line, "cpu")
    module = schedsim.apply(target.model, "plan.json", target.inputs, target.loss)
    module(*target.inputs).backward()
    assert printed(capsys, "validate", line, "plan.json", "--rounds", "0")["holds"]


def test_a_plan_with_a_link_is_replayed_on_the_model(line, capsys):
    plan = planned(capsys, line, 0.6)
    assert main(["simulate", line, "plan.json"]) == 0
    assert f"{len(plan['schedule'])}, " in capsys.readouterr().out


@pytest.mark.slow
def test_ops_are_refused_by_their_level(line, capsys):
    plan = planned(capsys, line, 0.7, "--level", "op")
    assert any(name.startswith("h2d:") for name in plan["schedule"])
    target = load_target(line, "cpu")
    with pytest.raises(schedsim.UnsupportedError, match="of the block level"):
        schedsim.apply(target.model, "plan.json", target.inputs, target.loss)
    assert main(["validate", line, "plan.json", "--level", "op", "--rounds", "0"]) == 2
    assert "the op level takes no plan that offloads" in capsys.readouterr().err


@pytest.mark.slow
def test_ways_price_copies_where_there_is_a_link(line, capsys):
    most = printed(capsys, "plan", line, "--mem", "1GB")["peak_bytes"]
    call = ("plan", line, "--mem", str(int(0.6 * most)), "--ways", "--accumulate", "2")
    assert not any(way["offload"] for way in printed(capsys, *call)["ways"])
    call = ("plan", line, "--mem", str(int(0.6 * most)), "--ways", *QUICK)
    found = printed(capsys, *call, "-o", "plan.json")
    ways = {way["name"]: way for way in found["ways"]}
    assert {"recompute alone", "offload", "4 micro-batches", "4 micro-batches, offload"} <= {*ways}
    # Times are measured: on a busy machine another way than copies may be the fastest.
    fitting = [way for way in found["ways"] if way["status"] in ("chosen", "fits")]
    (chosen,) = (way for way in fitting if way["status"] == "chosen")
    assert (chosen["peak_bytes"], chosen["step_s"]) == (found["peak_bytes"], found["makespan_s"])
    assert chosen["step_s"] == min(way["step_s"] for way in fitting)
    copies = ways["offload"]
    assert copies in fitting
    assert copies["same_bits"]
    assert copies["note"].endswith("on the host")
    target = load_target(line, "cpu")
    model, inputs = target.model, target.inputs
    schedsim.apply(model, "plan.json", inputs, target.loss)(*inputs).backward()
    few = schedsim.ways(
        model, inputs, int(0.6 * most), nn.functional.mse_loss, offload="10TB/s", time_limit_s=0.2
    )
    assert {way.offload for way in few} == {True, False}
    assert all(way.peak_bytes for way in few if way.offload and way.status == "fits")
