"""The scripts in `examples/` do what they say."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.slow
def test_a_gpt2_trains_in_half_the_memory_with_the_same_losses():
    """The whole loop, optimizer included, measured: within half, and the losses to the bit."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "train_gpt2.py")],
        capture_output=True,
        text=True,
        check=True,
    )
    peaks = [float(text) for text in re.findall(r"([\d.]+) MiB", done.stdout)]
    assert len(peaks) == 2
    assert peaks[1] <= peaks[0] / 2 + 0.1  # as printed, rounded
    assert done.stdout.rstrip().endswith("equal: True")


@pytest.mark.slow
def test_one_line_makes_a_loop_fit():
    """Measured before and after, the loss outside of the model, to the bit; as README shows it."""
    script = EXAMPLES / "fit_loop.py"
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=600
    )
    peaks = [float(text) for text in re.findall(r"([\d.]+) MiB", done.stdout)]
    assert peaks[1] <= peaks[0] / 2 + 0.1
    assert done.stdout.rstrip().endswith("equal: True")
    readme = (EXAMPLES.parent / "README.md").read_text()
    assert re.sub(r"[\d.]+", "#", done.stdout).strip() in re.sub(r"[\d.]+", "#", readme)


def test_the_readme_shows_that_loop():
    """Its code is that of the example, in at most 20 lines."""
    readme = (EXAMPLES.parent / "README.md").read_text()
    [shown] = re.findall(r"```python\n(def train\(.*?)```", readme, re.DOTALL)
    assert shown.strip() in (EXAMPLES / "train_gpt2.py").read_text()
    assert len(shown.splitlines()) <= 20


@pytest.mark.slow
def test_the_memory_tests_pass_and_tell_of_a_lost_kernel(tmp_path):
    """With their golden file as it is committed; and once the attention returns its weights."""
    folder = tmp_path / "memory_tests"
    shutil.copytree(EXAMPLES / "memory_tests", folder, ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "test_memory.py"
    whole = file.read_text()
    lost = whole.replace("need_weights=False", "need_weights=True")
    assert lost != whole
    (folder / "test_lost.py").write_text(lost)
    golden = folder / "schedsim_peaks"
    shutil.copytree(golden / "test_memory", golden / "test_lost")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "pytest_schedsim",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-k", "nothing_new", str(folder)],
        capture_output=True,
        text=True,
        cwd=EXAMPLES.parent,
        timeout=300,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    shown = (EXAMPLES.parent / "docs" / "memory-tests.md").read_text()
    told = [line for line in done.stdout.splitlines() if line[:1] in "+-" and "`" in line]
    assert told
    assert all(line in shown for line in told)


def test_the_workflow_and_the_hook_run_the_memory_tests():
    """Both are what their tools read, and run pytest on the test file."""
    yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")
    workflow = yaml.safe_load((EXAMPLES / "memory_tests/github-workflow.yml").read_text())
    [job] = workflow["jobs"].values()
    assert job["steps"][-1]["run"] == "pytest tests/test_memory.py"
    config = yaml.safe_load((EXAMPLES / "memory_tests/pre-commit-config.yaml").read_text())
    [hook] = config["repos"][0]["hooks"]
    assert hook["entry"].endswith("pytest -q tests/test_memory.py")
    assert re.match(hook["files"], "tests/schedsim_peaks/test_memory/test_peak.json")
