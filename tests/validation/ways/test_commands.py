"""Ways to spend less, as the command line asks for them and as they are applied."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.targets import load_target  # noqa: E402
from schedsim.validation.ways.commands import plan_target  # noqa: E402
from tiers import slow_where  # noqa: E402

import schedsim  # noqa: E402
from schedsim.cli.app import run as main  # noqa: E402

LEVELS = ("op", "block")
GPT = "model:gpt2,layers=2,hidden=32,heads=2,vocab=499,seq=32,batch=8,dropout=0.0"


@pytest.mark.parametrize("level", slow_where(LEVELS, lambda level: level == "op"))
def test_a_plan_with_chunks_and_micro_batches_is_applied_with_them(tmp_path, level, capsys):
    file = str(tmp_path / "plan.json")
    call = ["plan", GPT, "--level", level, "--time-limit", "1"]
    call += ["--accumulate", "4", "--chunk", "head=2"]
    assert main([*call, "--mem", "1GB", "-o", file, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [way["status"] for way in printed["ways"]] == ["chosen"]
    target = load_target(GPT)
    module = schedsim.apply(target.model, file, target.inputs, target.loss)
    assert module.plan.setting.step.accumulate == 4
    with schedsim.watch(module) as seen:
        loss = module(*target.inputs)
        loss.backward()
    found = [p.grad for p in target.model.parameters()]
    target.model.zero_grad()
    plain = target.loss(target.model(*target.inputs))
    plain.backward()
    torch.testing.assert_close(loss, plain)
    for p, grad in zip(target.model.parameters(), found, strict=True):
        torch.testing.assert_close(p.grad, grad, rtol=1e-4, atol=1e-7)
    assert seen.measured_bytes[0] <= module.plan.peak_bytes == printed["peak_bytes"]


@pytest.mark.slow
def test_prices_of_all_ways_and_none_that_is_not_allowed(capsys):
    """What rounds otherwise has a price, and is not chosen unless it is asked for."""
    small = "model:gpt2,layers=2,hidden=16,heads=2,vocab=199,seq=64,batch=4,dropout=0.0"
    assert main(["plan", small, "--mem", "1GB", "--ways", "--json"]) == 0
    ways = json.loads(capsys.readouterr().out)["ways"]
    chosen = [way for way in ways if way["status"] == "chosen"]
    assert [(way["num_parts"], way["chunks"]) for way in chosen] == [(1, {})]
    others = [way for way in ways if way["status"] == "fits, not allowed"]
    assert {way["num_parts"] for way in others} == {1, 2, 4}
    assert any("head" in way["chunks"] for way in others)
    assert all(way["peak_bytes"] and way["step_s"] for way in others)
    assert not any(way["same_bits"] for way in others)


def test_what_the_options_of_ways_refuse(capsys):
    assert main(["plan", "--layers", "4", "--mem", "1GB", "--accumulate", "auto"]) == 2
    assert "are for real models" in capsys.readouterr().err
    assert main(["plan", GPT, "--mem", "1GB", "--accumulate", "0"]) == 2
    assert "--accumulate 0" in capsys.readouterr().err
    assert main(["plan", GPT, "--mem", "1GB", "--chunk", "tail=3"]) == 2
    assert "--chunk tail=3" in capsys.readouterr().err
    assert main(["plan", GPT, "--mem", "1kB", "--accumulate", "2"]) == 1
    assert "does not fit: least budget" in capsys.readouterr().err


def test_an_outcome_says_what_was_captured_and_chosen():
    """Ops and device, micro-batches, what is counted, and a table of the ways."""
    found = plan_target(GPT, "1GB", accumulate=4)
    assert found.num_parts == 4
    assert found.lines[0].startswith(f"{GPT} by block: {len(found.workload.op_names)} ops, on ")
    assert found.lines[1] == "one of 4 micro-batches of a step, the largest"
    assert [way.status for way in found.ways] == ["chosen"]
    assert found.plan.setting.step.accumulate == 4
    assert any("chosen" in line for line in found.lines)
