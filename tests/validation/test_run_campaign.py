"""The campaign from a bare checkout: found wherever it is called from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

SCRIPT = Path(__file__).parents[2] / "validation" / "run_campaign.py"


@pytest.mark.slow
def test_it_runs_without_schedsim_on_the_path(tmp_path):
    """From another folder, with none of ours named; it is the campaign's own command line."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    found = subprocess.run(
        [sys.executable, str(SCRIPT), "--help"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert "usage: run_campaign.py" in found.stdout
