"""What a step takes, on which devices it fits, and what recomputation costs there."""

from __future__ import annotations

import json

import pytest

import schedsim
from schedsim.cli.app import run
from schedsim.workloads import WorkloadOptions, build_workload
from schedsim.workloads.devices import device_names, get_device


@pytest.mark.slow
def test_every_device_has_a_row_that_plan_agrees_with(capsys):
    """By memory; state and peak are those of the workload, overheads those of a plan in there."""
    assert run(["estimate", "--preset", "gpt2-xl", "--batch", "8", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["devices"]
    assert sorted(row["device"] for row in rows) == sorted(device_names())
    assert [row["memory_bytes"] for row in rows] == sorted(row["memory_bytes"] for row in rows)
    for row in rows:
        options = WorkloadOptions(preset="gpt2-xl", batch=8, static="auto", device=row["device"])
        workload = build_workload(options).workload
        # Mixed-precision Adam, 16 bytes for each of 1,557,611,200 parameters.
        assert row["static_bytes"] == 16 * 1_557_611_200 == workload.static_bytes
        everything = schedsim.simulate(workload, schedsim.Schedule.store_all(workload))
        assert row["store_all_bytes"] == everything.peak_bytes
        memory = get_device(row["device"]).memory_bytes
        assert row["fits"] == (memory >= (row["least_bytes"] or everything.peak_bytes))
        if row["fits"]:
            assert row["peak_bytes"] <= memory
            plan = schedsim.plan(workload, memory)
            assert row["overhead"] == pytest.approx(plan.overhead, abs=1e-9)


@pytest.mark.slow
def test_the_model_in_one_line(capsys):
    """As accelerate says it of one; what fits whole, and what recomputing, with its price."""
    line = "hf:meta-llama/Llama-3.2-1B --optimizer adamw --batch 1 --seq 8192"
    assert run(["estimate", *line.split()]) == 0
    head, row = (text.split() for text in capsys.readouterr().out.splitlines()[:2])
    assert (
        " ".join(head) == "model dtype largest layer weights adamw a step fits as it is recomputing"
    )
    assert row[:2] == ["llama3.2-1b", "bf16"]
    embedding = 128256 * 2048 * 2
    assert row[2:6:2] == [f"{embedding / 1e6:.1f}", "2.47"]
    assert " ".join(row[-6:]) == "38.23 GB a100-40gb v100, +16.95 %"
    assert run(["estimate", *line.split(), "--json"]) == 0
    model = json.loads(capsys.readouterr().out)["model"]
    assert model["num_parameters"] == 1_235_814_400
    assert model["state_bytes"] == 16 * model["num_parameters"]


def test_a_configuration_of_ones_own(capsys, tmp_path):
    """A file or its folder; the options are those of a formula."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
             "num_attention_heads": 4, "vocab_size": 1000}  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **sizes}))
    line = ["estimate", f"hf:{tmp_path}", "--batch", "2", "--dtype", "fp32", "--device", "h100"]
    assert run([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    layer = 4 * 256 * 256 + 3 * 256 * 512 + 2 * 256
    assert found["model"]["num_parameters"] == 4 * layer + 2 * 1000 * 256 + 256
    assert "micro-batch 2" in found["assumptions"][0]


def test_where_nothing_fits_the_exit_code_is_no(capsys):
    """Model state alone, 16 bytes for each of 405,853,388,800 parameters, is 6.5 TB."""
    assert run(["estimate", "--preset", "llama3-405b", "--device", "h100"]) == 1
    out = capsys.readouterr().out
    assert "model state  6.49 TB" in out
    assert "does not fit" in out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("chain.json", "estimate takes a model given by formula"),
        ("--synthetic uniform --layers 4", "estimate takes a model given by formula"),
        ("--layers 4 --times t.json", "--times holds for one device"),
        ("--preset gpt2 --device abacus", "--device 'abacus' is unknown"),
        ("hf:nobody/nothing", "hf:nobody/nothing is neither a file nor a model"),
        ("hf:qwen3-8b chain.json", "both hf:qwen3-8b and chain.json are given"),
        ("hf:qwen3-8b --preset gpt2", "both hf:qwen3-8b and --preset gpt2 are given"),
        ("--preset qwen3-8b --hidden 64", "--hidden 64 does not go with qwen3-8b"),
        ("", "no workload"),
    ],
)
def test_refusals(capsys, line, says):
    """One error line and a hint."""
    assert run(["estimate", *line.split()]) == 2
    error = capsys.readouterr().err.splitlines()
    assert says in error[0] or not line
    assert error[1].startswith("hint: ")
