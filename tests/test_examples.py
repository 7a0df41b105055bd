"""The scripts in `examples/` do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

EXAMPLES = Path(__file__).parents[1] / "examples"


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


def test_the_readme_shows_that_loop():
    """Its code is that of the example, in at most 20 lines."""
    readme = (EXAMPLES.parent / "README.md").read_text()
    [shown] = re.findall(r"```python\n(def train\(.*?)```", readme, re.DOTALL)
    assert shown.strip() in (EXAMPLES / "train_gpt2.py").read_text()
    assert len(shown.splitlines()) <= 20
