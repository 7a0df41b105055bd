"""Sweeps over settings of clusters: what a file says, what its rows say, what is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict

import pytest

import schedsim
from schedsim.clusters import choose
from schedsim.errors import SchedsimError
from schedsim.sweeps import read_experiment, read_rows, run_sweep
from schedsim.sweeps.cluster_runs import read_clusters
from schedsim.sweeps.execute import run_one

SMALL = {"preset": "llama3.2-1b", "devices": 8, "seq": 1024}


def outcome(**settings):
    """The row of one setting."""
    (run,) = read_clusters([{**SMALL, **settings}], "clusters")
    return run_one(run)[0]


def test_rows_are_what_one_call_says():
    """A prediction, and whether it fits the budget or the device."""
    step = schedsim.cluster("llama3.2-1b", devices=8, seq=1024, batch=2, tensor=2)
    row = outcome(batch=2, tensor=2)
    assert (row["status"], row["reserved_bytes"]) == ("feasible", step.reserved_bytes)
    assert (row["step_s"], row["degrees"]) == (step.step_s, asdict(step.degrees))
    assert outcome(batch=2, mem=step.reserved_bytes // 4)["status"] == "infeasible"


def test_a_row_may_be_a_search():
    """With its bound; without an answer the least that a candidate needs."""
    words = {"devices": 8, "seq": 1024, "tensor": 1, "pipeline": 1}
    best = choose("llama3.2-1b", 60 * 10**9, global_batch=8, **words)
    row = outcome(search=True, mem="60GB", tensor=1, pipeline=1)
    assert row["status"] == "optimal"
    assert (row["step_s"], row["lower_bound_s"]) == (best.best.step_s, best.lower_bound_s)
    least = outcome(search=True, mem="1GB", tensor=1, pipeline=1)
    assert least["status"] == "infeasible"
    assert least["reserved_bytes"] > 10**9


@pytest.mark.slow
def test_what_fits_is_chosen_layer_by_layer():
    """As with ``--recompute fit``."""
    row = outcome(batch=4, seq=2048, recompute="fit", mem="22GB")
    assert row["status"] == "feasible"
    assert row["training"]["recompute"].startswith(("keep=", "full:"))
    assert row["reserved_bytes"] <= 22 * 10**9


def test_lists_multiply_and_equal_settings_are_one(tmp_path):
    """In the order of the file; the file of results is the same however it was made."""
    file = tmp_path / "e.toml"
    file.write_text(
        'clusters = [{preset = "llama3.2-1b", devices = 8, seq = [512, 1024], batch = [1, 2]},'
        ' {preset = "llama3.2-1b", devices = 8, batch = 2, seq = 512},'
        ' {preset = "llama3.2-1b", devices = 8, tensor = 3}]'
    )
    runs = read_experiment(file).clusters
    assert len(runs) == len({run.key for run in runs}) == 5
    assert runs[1].label == "llama3.2-1b, devices=8, seq=512, batch=2"
    rows = run_sweep(runs, str(tmp_path / "r.jsonl"))
    assert [row["status"] for row in rows] == ["feasible"] * 4 + ["error"]
    assert "is not a multiple of --tensor 3" in rows[-1]["error"]["message"]
    seen = []
    again = run_sweep(runs, str(tmp_path / "r.jsonl"), on_row=lambda row, _: seen.append(row))
    assert again == rows
    assert not seen
    with pytest.raises(SchedsimError, match="of clusters, and no planner made them"):
        read_rows(tmp_path / "r.jsonl")
    assert read_rows(tmp_path / "r.jsonl", clusters=True) == rows


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ("llama3-8b", r"clusters\[0\]: \'llama3-8b\' names no model"),
        ({"preset": ["llama3-8b", 3]}, "names no model"),
        ({"preset": "llama"}, "is no language model"),
        ({"preset": "llama3-8b", "batchs": 2}, r"clusters\[0\].batchs: unknown field"),
        ({"preset": "llama3-8b", "batch": []}, "no plain value"),
        ({"preset": "llama3-8b", "mem": "8XB"}, "unknown unit"),
        ({"preset": "llama3-8b", "device": "h"}, "--device"),
        ({"preset": "llama3-8b", "search": 1}, "is not true or false"),
        ({"preset": "llama3-8b", "search": True, "devices": 8}, "a search needs mem"),
        ({"preset": "llama3-8b", "effort": 8}, "effort: belongs to a search"),
    ],
)
def test_refusals(item, says):
    """The place of the mistake is named."""
    with pytest.raises(SchedsimError, match=says):
        read_clusters([item], "clusters")


@pytest.mark.slow
def test_settings_of_clusters_over_dask(tmp_path):
    """A dask cluster of this machine writes the file that one process writes, refusals included."""
    pytest.importorskip("distributed")
    path = tmp_path / "c.toml"
    path.write_text(
        "clusters = [\n"
        '{preset = "llama3.2-1b", devices = [2, 4], seq = 512, recompute = ["full@host", "fit"]},\n'
        '{preset = "llama3.2-1b", devices = 4, tensor = 3}]\n'
    )
    for name, more in (("here.jsonl", ()), ("dask.jsonl", ("--backend", "dask", "--jobs", "2"))):
        command = [sys.executable, "-m", "schedsim", "sweep", path, "-o", tmp_path / name, *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=170)
        assert "1 of 5 runs ended with an error" in done.stderr
    rows = (tmp_path / "here.jsonl").read_bytes()
    assert rows == (tmp_path / "dask.jsonl").read_bytes()
    assert rows.count(b"\n") == 5
