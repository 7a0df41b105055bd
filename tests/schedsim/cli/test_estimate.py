"""What a step takes, on which devices it fits, and what recomputation costs there."""

from __future__ import annotations

import json

import pytest

import schedsim
from schedsim.cli.app import run
from schedsim.workloads import WorkloadOptions, build_workload
from schedsim.workloads.devices import device_names, get_device


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


def test_where_nothing_fits_the_exit_code_is_no(capsys):
    """Model state alone, 16 bytes for each of 405,853,388,800 parameters, is 6.5 TB."""
    assert run(["estimate", "--preset", "llama3-405b", "--device", "h100"]) == 1
    out = capsys.readouterr().out
    assert "model state  6.49 TB" in out
    assert "does not fit" in out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("chain.json", "estimate takes a model by formula"),
        ("--synthetic uniform --layers 4", "estimate takes a model by formula"),
        ("--layers 4 --times t.json", "--times are of one device"),
        ("--preset gpt2 --device abacus", "--device 'abacus' is unknown"),
        ("", "no workload"),
    ],
)
def test_refusals(capsys, line, says):
    """One error line and a hint."""
    assert run(["estimate", *line.split()]) == 2
    error = capsys.readouterr().err.splitlines()
    assert says in error[0] or not line
    assert error[1].startswith("hint: ")
