"""The script that runs the tests on each version of torch, and the page that it writes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    """The module; scripts are no package."""
    path = ROOT / "benchmarks" / "torch_versions.py"
    spec = importlib.util.spec_from_file_location("schedsim_torch_versions", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


REPORT = """<testsuites><testsuite>
<testcase classname="tests.validation.drop_in.test_backend" name="test_a"/>
<testcase classname="tests.validation.drop_in.test_backend" name="test_b">
<failure message="IndexError: at 0x7f00&#10;more"/></testcase>
<testcase classname="tests.validation.test_watch" name="test_c"><skipped/></testcase>
<testcase classname="tests.validation.test_watch.TestIt" name="test_d">
<error message=""/></testcase>
</testsuite></testsuites>"""


def test_counts_and_failures_are_read_from_the_report(script):
    """By folder; of a failure, the first line."""
    run = script.read_report("2.15.0+cu132", REPORT)
    assert run.folders == {"drop_in": (1, 1, 0), "test_watch": (0, 1, 1)}
    assert run.failures == {
        "drop_in: test_b": "IndexError: at 0x7f00",
        "test_watch: test_d": "error",
    }
    assert (run.minor, run.total) == ("2.15", (1, 2, 1))


def test_what_is_run_again_takes_the_place_of_what_was(script, tmp_path, monkeypatch):
    """Other versions stay, and other folders of this one."""
    monkeypatch.setattr(script, "RESULTS", tmp_path / "runs.jsonl")
    monkeypatch.setattr(script, "PAGE", tmp_path / "page.md")
    script.store(script.read_report("2.15.0", REPORT))
    script.store(script.VersionRun("2.9.1", {"drop_in": (1, 0, 0)}))
    script.store(script.VersionRun("2.15.0", {"drop_in": (2, 0, 0)}))
    older, newer = script.stored()
    assert (older.version, newer.version) == ("2.9.1", "2.15.0")
    assert newer.folders == {"drop_in": (2, 0, 0), "test_watch": (0, 1, 1)}
    assert list(newer.failures) == ["test_watch: test_d"]
    page = (tmp_path / "page.md").read_text()
    assert "| 2.15.0 | 2 | 1 | 1 |" in page
    assert "| test_watch | - | 0, 1 failed |" in page


def test_the_page_is_of_the_results_that_are_committed(script):
    """In order, the oldest and the newest among them, and no failure is left unsaid."""
    runs = script.stored()
    assert [v for v in script.VERSIONS if v in {run.minor for run in runs}] == [
        run.minor for run in runs
    ]
    assert {script.VERSIONS[0], script.VERSIONS[-1]} <= {run.minor for run in runs}
    assert script.PAGE.read_text() == script.page(runs)
    for run in runs:
        assert run.total[1] == len(run.failures)
