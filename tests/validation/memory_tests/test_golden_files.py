"""Golden files: written alike, read strictly, and no alarm where nothing changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from peak_stories import STORIES
from schedsim.validation.memory_tests import (
    HeldTensor,
    StepPeak,
    check_golden,
    read_golden,
    step_peak,
    write_golden,
)

from schedsim.errors import SchedsimError

BUILD = STORIES["logits kept twice"][0]
HELPERS = Path(__file__).parents[2] / "helpers"


@pytest.mark.slow
def test_no_false_alarm_in_50_runs_and_equal_bytes_in_20(tmp_path):
    """The same step, built anew each time."""
    write_golden(step_peak(BUILD), tmp_path / "first.json")
    first = (tmp_path / "first.json").read_bytes()
    for number in range(50):
        peak = step_peak(BUILD)
        assert check_golden(peak, tmp_path / "first.json") == []
        if number < 20:
            write_golden(peak, tmp_path / "again.json")
            assert (tmp_path / "again.json").read_bytes() == first


@pytest.mark.slow
def test_another_process_writes_the_same_bytes(tmp_path):
    """With another hash seed, and numbers of threads."""
    code = (
        "import sys, pathlib; from peak_stories import STORIES\n"
        "from schedsim.validation.memory_tests import step_peak, write_golden\n"
        "build = STORIES['logits kept twice'][0]\n"
        "write_golden(step_peak(build), pathlib.Path(sys.argv[1]))\n"
    )
    path = os.pathsep.join([str(HELPERS), str(HELPERS.parents[1])])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1"}
    there = tmp_path / "there.json"
    subprocess.run([sys.executable, "-c", code, str(there)], check=True, env=environment)
    write_golden(step_peak(BUILD), tmp_path / "here.json")
    assert there.read_bytes() == (tmp_path / "here.json").read_bytes()


def small_peak(size, **more):
    held = (HeldTensor("a.mm", size, "kept", "grad.a.mm"), HeldTensor("w", 10**6, "static"))
    return StepPeak("m", size + 10**6, "a.mm", held, **more)


def test_growth_is_told_and_allowed_growth_passes(tmp_path):
    """By bytes, by share; less is never a failure."""
    path = tmp_path / "golden.json"
    write_golden(small_peak(1000), path)
    assert check_golden(small_peak(900), path) == []
    lines = check_golden(small_peak(3000), path)
    assert "+2.00 kB over the accepted 1.00 MB" in lines[0]
    assert lines[1] == "+2.00 kB: `a.mm` was 1.00 kB (kept)"
    assert check_golden(small_peak(3000), path, "2kB") == []
    assert check_golden(small_peak(3000), path, 1999)
    assert check_golden(small_peak(3000), path, "1%") == []
    assert check_golden(small_peak(3000), path, "0.1%")
    with pytest.raises(SchedsimError, match="share"):
        check_golden(small_peak(1), path, "x%")


def test_small_tensors_are_summed_up_and_the_peak_stays(tmp_path):
    """A file of a step of thousands of tensors can be read."""
    held = [HeldTensor("big", 10**9, "kept"), *(HeldTensor(f"t{i}", 7, "input") for i in range(99))]
    peak = StepPeak("m", 10**9 + 99 * 7, "big", tuple(held))
    write_golden(peak, tmp_path / "one.json")
    read = read_golden(tmp_path / "one.json").peak
    assert read == peak
    assert [t.name for t in read.tensors] == ["big", "small tensors, input"]


def changed(**values):
    return lambda text: json.dumps({**json.loads(text), **values})


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        changed(version=2),
        changed(peak_bytes=5),
        changed(tensors=[["a", 1]]),
        lambda text: "[]",
    ],
)
def test_a_damaged_file_is_refused(tmp_path, damage):
    """With its name and the way to a whole one."""
    path = tmp_path / "golden.json"
    write_golden(small_peak(1000), path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(SchedsimError) as caught:
        read_golden(path)
    assert "golden.json" in caught.value.message
    assert "--schedsim-update" in caught.value.hint


def test_a_file_of_another_kind_of_step_is_refused(tmp_path):
    """Compiled beside eager, and the attention of other kernels."""
    write_golden(small_peak(1000), tmp_path / "golden.json")
    for more in ({"compiled": True}, {"kernels": "cuda"}):
        with pytest.raises(SchedsimError, match=r"golden\.json is of"):
            check_golden(small_peak(1000, **more), tmp_path / "golden.json")
