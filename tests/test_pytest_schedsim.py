"""The pytest plugin, as a project that installed it runs it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytest_plugins = ["pytester"]

MEMORY_TEST = """
    import torch

    def step(width):
        model = torch.nn.Sequential(torch.nn.Linear(100, width), torch.nn.GELU())
        return model, (torch.zeros(50, 100),), lambda y: y.square().mean()

    def test_limit(schedsim_peak):
        assert schedsim_peak(*step(WIDTH)) <= "300kB"

    def test_golden(schedsim_peak):
        schedsim_peak.check(*step(WIDTH))
"""


@pytest.fixture
def run(pytester):
    """Run the memory test of a model of some width in a folder of its own."""
    pytest.importorskip("torch", reason="torch is not installed")

    def run(width, *options):
        pytester.makepyfile(test_memory=f"WIDTH = {width}\n{MEMORY_TEST}".replace("\n    ", "\n"))
        options = ("-p", "pytest_schedsim", "-p", "no:cacheprovider", *options)
        return pytester.runpytest_inprocess(*options)

    return run


def test_a_project_over_its_life(run, pytester):
    """No file yet, written, kept, grown with the reason, accepted, and less."""
    missing = run(100)
    missing.assert_outcomes(passed=1, failed=1)
    missing.stdout.fnmatch_lines(
        ["*schedsim_peaks/test_memory/test_golden.json*--schedsim-update*"]
    )
    run(100, "--schedsim-update").assert_outcomes(passed=2)
    assert (pytester.path / "schedsim_peaks/test_memory/test_golden.json").is_file()
    run(100).assert_outcomes(passed=2)
    grown = run(400)
    grown.assert_outcomes(failed=2)
    grown.stdout.fnmatch_lines(
        [
            "*StepPeak(Sequential: * <= '300kB'*",
            "*`0.weight` was 40.00 kB (static)*",
            "*--schedsim-update, and review the file*",
        ]
    )
    run(400, "--schedsim-update")
    less = run(100)
    less.assert_outcomes(passed=2)
    less.stdout.fnmatch_lines(["schedsim: *bytes less than accepted*"])


def test_one_file_for_two_checks_is_refused(pytester):
    """Silence would leave one of them unchecked."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytester.makepyfile(
        """
        import torch
        from torch import nn

        def test_both(schedsim_peak):
            step = nn.Linear(2, 2), (torch.zeros(1, 2),), lambda y: y.sum()
            schedsim_peak.check(*step)
            schedsim_peak.check(*step, name="other")
            schedsim_peak.check(*step)
        """
    )
    done = pytester.runpytest_inprocess("-p", "pytest_schedsim", "--schedsim-update")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*used twice in one test: give each check a name*"])


def test_a_run_that_does_not_use_it_pays_nothing():
    """The plugin is loaded in every run of pytest: neither schedsim, numpy nor torch come along."""
    code = "import sys, pytest; before = set(sys.modules); import pytest_schedsim\n"
    code += "print(sorted(m for m in set(sys.modules) - before if not m.startswith('_')))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['pytest_schedsim']"


def test_pytest_finds_it_in_an_installed_schedsim():
    """By an entry point of the module's own name, so that ``-p`` beside it loads it once."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"pytest_schedsim": "pytest_schedsim"}
    assert project["tool"]["setuptools"]["py-modules"] == ["pytest_schedsim"]
