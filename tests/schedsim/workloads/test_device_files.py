"""Devices from files, read strictly; their rates set the times of formulas and of models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schedsim.cli.app import run
from schedsim.errors import InvalidWorkloadError, SchedsimError
from schedsim.workloads import WorkloadOptions, build_workload
from schedsim.workloads.devices import get_device, read_device

EXAMPLE = Path(__file__).parents[3] / "examples" / "device.json"
DOCUMENT = json.loads(EXAMPLE.read_text())


def test_half_the_rates_are_twice_the_times():
    """The example halves every peak of the A100, so that a step takes twice as long."""
    whole = build_workload(WorkloadOptions(layers=4, device="a100-80gb"))
    half = build_workload(WorkloadOptions(layers=4, device=str(EXAMPLE)))
    assert half.workload.store_all_s == pytest.approx(2 * whole.workload.store_all_s)
    assert half.assumptions[-1] == "times: roofline of half-a100 (half of an A100's peaks)"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schema": "schedsim.device/2"}, "schema: 'schedsim.device/2' is unknown"),
        ({"name": 3}, "name: 3 is not text"),
        ({"name": "a\nb"}, "name: 'a\\nb' has control characters"),
        ({"bytes_per_s": 0}, "bytes_per_s: 0.0 is not a rate above 0"),
        ({"bytes_per_s": -1e9}, "bytes_per_s: -1000000000.0 is not a rate above 0"),
        ({"bytes_per_s": 1e30}, "bytes_per_s: 1e+30 is not a rate above 0"),
        ({"bytes_per_s": 10**400}, "bytes_per_s: "),
        ({"bytes_per_s": "2TB"}, "bytes_per_s: '2TB' is not a number"),
        ({"bytes_per_s": True}, "bytes_per_s: True is not a number"),
        ({"memory_bytes": 1.5}, "memory_bytes: 1.5 is not a whole number of bytes"),
        ({"memory_bytes": None}, "memory_bytes: None is not a whole number of bytes"),
        ({"flops_per_s": {"fp16": 1e12, "bf16": 1e12}}, "flops_per_s.fp32: missing field"),
        (
            {"flops_per_s": {"fp16": 1e12, "bf16": 1e12, "fp32": 0}},
            "flops_per_s.fp32: 0.0 is not a rate above 0",
        ),
        (
            {"flops_per_s": {"fp16": 1e12, "bf16": 1e12, "fp32": 1e12, "fp8": 1e12}},
            "flops_per_s.fp8: unknown field",
        ),
        ({"bandwidth": 1e9}, "bandwidth: unknown field"),
    ],
)
def test_a_malformed_file_names_its_field(tmp_path, changes, says):
    """The file, the field, and what is wrong with it."""
    file = tmp_path / "dev.json"
    file.write_text(json.dumps({**DOCUMENT, **changes}))
    with pytest.raises(InvalidWorkloadError) as caught:
        read_device(file)
    assert caught.value.message.startswith(f"{file}: {says}")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": 1, "name": 2}', '{"schema": NaN}'])
def test_what_is_no_device_is_refused(tmp_path, capsys, text):
    """One error line and one hint line, no traceback."""
    file = tmp_path / "dev.json"
    file.write_text(text)
    assert run(["plan", "--layers", "2", "--mem", "100%", "--device", str(file)]) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 2
    assert error[0].startswith(f"error: {file}: ")


def test_names_that_are_there_and_not(capsys):
    """A slip is answered by the nearest name, else by all and the way to give a file."""
    with pytest.raises(SchedsimError) as caught:
        get_device("a100-80g")
    assert caught.value.hint == "did you mean 'a100-80gb'?"
    with pytest.raises(SchedsimError) as caught:
        get_device("abacus")
    assert caught.value.hint.endswith("or a file NAME.json")
    assert run(["plan", "--layers", "2", "--mem", "100%", "--device", "none.json"]) == 2
    assert "none.json: No such file" in capsys.readouterr().err


def test_an_experiment_finds_the_file_beside_it(tmp_path, capsys):
    """As measured times: a relative path is one from the folder of the experiment."""
    (tmp_path / "dev.json").write_text(EXAMPLE.read_text())
    experiment = tmp_path / "e.toml"
    experiment.write_text('workloads = [{layers = 2, device = "dev.json"}]\nbudgets = ["50%"]')
    line = ["sweep", str(experiment), "-o", str(tmp_path / "r.jsonl"), "--dry-run"]
    assert run(line) == 0
    assert "device=dev.json" in capsys.readouterr().out
