"""Everything works from the root of a checkout, whatever is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAN = (
    "import schedsim; c = schedsim.Chain.from_arrays('one', 1, forward_s=[1], backward_s=[1],"
    " output_bytes=[1], saved_bytes=[2]); print(schedsim.plan(c, 100).status)"
)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-c", PLAN], "optimal"),
        (["-m", "schedsim", "planners"], "frontier"),
        (["-m", "schedsim", "--version"], "schedsim 0."),
    ],
)
def test_an_interpreter_without_an_editable_install_finds_the_outer_folders(
    arguments, said, tmp_path
):
    """As after ``pip install .``: the checkout's own folder is found before the installed one."""
    environment = dict(os.environ, PYTHONNOUSERSITE="1")
    environment.pop("PYTHONPATH", None)
    # Finders of an editable install would find the outer folders for us.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.meta_path[:] = [f for f in sys.meta_path if 'ditable' not in repr(f)]\n"
    )
    environment["PYTHONPATH"] = str(tmp_path)
    run = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert said in run.stdout
