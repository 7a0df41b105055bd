"""Other packages bring planners, targets, workloads and devices; a broken one breaks nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from schedsim.algorithms import get_planner, planner_names

import schedsim
from schedsim import plugins
from schedsim.cli.app import run
from schedsim.errors import SchedsimError
from schedsim.export import export, target_names
from schedsim.workloads.devices import device_names, get_device
from schedsim.workloads.named import named_workload

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"

BROKEN = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "broken-example"
version = "1"
[project.entry-points."schedsim.planners"]
not_there = "broken_example:nothing"
rotor = "broken_example:nothing"
no_planner = "broken_example:NUMBER"
[tool.setuptools]
py-modules = ["broken_example"]
"""


@pytest.fixture(scope="session")
def installed(tmp_path_factory) -> Path:
    """The example and a broken package, installed into a folder of their own."""
    work = tmp_path_factory.mktemp("plugins")
    shutil.copytree(EXAMPLE, work / "example")  # building writes beside the sources
    (work / "broken").mkdir()
    (work / "broken" / "pyproject.toml").write_text(BROKEN)
    (work / "broken" / "broken_example.py").write_text("NUMBER = 3\n")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    where = ["--no-build-isolation", "--target", str(work / "site")]
    subprocess.run(
        [*pip, *where, str(work / "example"), str(work / "broken")], check=True, timeout=300
    )
    return work / "site"


@pytest.fixture
def on_path(installed, monkeypatch):
    """That folder on the path, as if its packages were installed."""
    monkeypatch.syspath_prepend(str(installed))
    plugins.forget()
    yield
    plugins.forget()
    for name in [n for n in sys.modules if n.startswith(("schedsim_example", "broken_example"))]:
        del sys.modules[name]


@pytest.mark.slow
def test_names_are_known_without_an_import(on_path):
    """The metadata alone is read: completion and unknown names import nobody's code."""
    assert "largest_first" in planner_names()
    assert "csv" in target_names()
    assert "toy-npu" in device_names()
    assert not [name for name in sys.modules if name.startswith("schedsim_example")]


@pytest.mark.slow
def test_a_planner_of_another_package_plans(on_path, capsys):
    """By name in Python and on the command line, its plan replayed, its options its own."""
    chain = named_workload("workload:hourglass,levels=2,width_mb=1")
    # Outputs of 500, 250, 500 and 1000 kB, each with a bundle of three times its size.
    everything = schedsim.simulate(chain, schedsim.Schedule.store_all(chain)).peak_bytes
    plan = schedsim.plan(chain, "80%", "largest_first")
    assert plan.planner == "largest_first"
    assert plan.peak_bytes <= everything * 8 // 10
    # The last stage's bundle is the largest: its forward runs twice.
    assert plan.schedule.names.count("F3") == 2
    with pytest.raises(SchedsimError, match="does not take mots") as caught:
        schedsim.plan(chain, "80%", "largest_first", mots=1)
    assert "did you mean most?" in caught.value.hint
    assert run(["plan", "workload:hourglass", "--mem", "70%", "--planner", "largest_first"]) == 0
    assert "by largest_first" in capsys.readouterr().out


def test_a_broken_package_is_one_line(on_path, capsys, caplog):
    """`schedsim planners` lists the rest; what is asked for by name is an error of two lines."""
    assert run(["planners"]) == 0
    assert "largest_first" in capsys.readouterr().out
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert all("broken-example" in line and "\n" not in line for line in lines)
    assert sum("schedsim has a planner of this name" in line for line in lines) == 1
    caplog.clear()
    assert run(["planners"]) == 0  # said once
    assert caplog.records == []
    assert run(["plan", "--layers", "2", "--mem", "9GB", "--planner", "not_there"]) == 2
    error = capsys.readouterr().err.splitlines()
    assert error[0].startswith("error: planner 'not_there' of package broken-example cannot be")
    assert error[1] == "hint: update broken-example, or uninstall it"
    assert get_planner("rotor").source != ""  # schedsim's own


def test_a_broken_package_is_one_line_on_stderr(installed):
    """As a process of its own: stdout is whole, and stderr has a line a fault and no traceback."""
    found = subprocess.run(
        [sys.executable, "-m", "schedsim", "planners", "--json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        cwd=EXAMPLE.parents[1],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{EXAMPLE.parents[1]}:{installed}"},
    )
    names = [row["name"] for row in json.loads(found.stdout)["planners"]]
    assert names[-1] == "largest_first"
    lines = found.stderr.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("warning: planner ") for line in lines)


def test_a_target_of_another_package_exports(on_path, tmp_path, capsys):
    """Its text is its own; its numbers are those of the schedule."""
    chain = named_workload("workload:hourglass,levels=1")
    plan = schedsim.plan(chain, "100%")
    exported = export(chain, plan, "csv")
    assert exported.exact
    assert exported.peak_bytes == plan.peak_bytes
    assert exported.text.splitlines()[:2] == ["run,op,recomputed", "0,F0,no"]
    assert run(["export", "--list"]) == 0
    assert "any schedule, a row for each op run" in capsys.readouterr().out
    schedsim.save(plan, tmp_path / "plan.json")
    line = ["export", "workload:hourglass,levels=1", str(tmp_path / "plan.json"), "--to", "csv"]
    assert run(line) == 0


def test_a_workload_of_another_package(on_path, tmp_path, capsys):
    """In Python, in files of experiments; its options are of the types of their defaults."""
    assert schedsim.plan("workload:hourglass,levels=3", "100%").workload.name == "hourglass-3"
    for text, says in [
        ("workload:hourglas", "unknown workload 'hourglas'"),
        ("workload:hourglass,level=3", "does not take level"),
        ("workload:hourglass,levels=3.5", "levels=3.5 is not a whole number"),
        ("workload:hourglass,levels", "'levels' is no OPTION=VALUE"),
    ]:
        with pytest.raises(SchedsimError, match=says):
            named_workload(text)
    experiment = tmp_path / "e.toml"
    experiment.write_text('workloads = ["workload:hourglass,levels=3"]\nbudgets = ["50%"]')
    assert run(["sweep", str(experiment), "-o", str(tmp_path / "r.jsonl"), "--dry-run"]) == 0
    assert "workload:hourglass,levels=3" in capsys.readouterr().out


def test_a_device_of_another_package(on_path, capsys):
    """Its rates set the times of a formula."""
    assert get_device("toy-npu").memory_bytes == 16 * 10**9
    assert run(["plan", "--layers", "2", "--mem", "100%", "--device", "toy-npu"]) == 0
    assert "roofline of toy-npu (an example)" in capsys.readouterr().out


class TestFunctions:
    """`planner=` takes a function; nothing that it gives is believed."""

    CHAIN = schedsim.Chain.from_arrays(
        "two", 4, forward_s=[1, 1], backward_s=[2, 2], output_bytes=[4, 4], saved_bytes=[10, 10]
    )

    def test_a_function_that_gives_a_schedule(self):
        """It becomes a plan under the function's name, with the options that were asked."""

        def everything(workload, budget_bytes, *, note=""):
            return schedsim.Schedule.store_all(workload)

        plan = schedsim.plan(self.CHAIN, "100%", everything, note="x")
        assert (plan.planner, plan.status, plan.options) == ("everything", "optimal", {"note": "x"})
        assert schedsim.pareto(self.CHAIN, everything, budgets=["100%"]).points[0].makespan_s == 6
        rows = schedsim.compare(self.CHAIN, 26, [lambda w, b: None, "rotor"])
        assert [row.status for row in rows] == ["infeasible", "optimal"]

    def test_a_plan_over_the_budget_is_refused(self):
        """Store-all takes 32 bytes."""
        with pytest.raises(SchedsimError, match="planned 32 bytes for a budget of 31"):
            schedsim.plan(self.CHAIN, 31, lambda w, b: schedsim.Schedule.store_all(w))

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"peak_bytes": 3}, "the plan says peak 3"),
            ({"makespan_s": 3.0}, "the plan says step time 3"),
            ({"lower_bound_s": 7.0}, "its lower bound 7.0 s is above its step time"),
            ({"status": "feasible"}, "it says feasible, but its step time meets its bound"),
            ({"budget_bytes": 40}, "the plan is for 40 bytes"),
            ({"schedule": None}, "has no schedule"),
        ],
    )
    def test_a_doctored_plan_is_refused(self, changes, says):
        """Every number that the replay refutes."""
        from dataclasses import replace

        def doctored(workload, budget_bytes):
            return replace(schedsim.plan(workload, budget_bytes), **changes)

        with pytest.raises(SchedsimError, match=says):
            schedsim.plan(self.CHAIN, 32, doctored)

    @pytest.mark.parametrize("found", [3, "F0 B0", ["F0"]])
    def test_what_is_neither_is_refused(self, found):
        """One line says what a planner gives."""
        with pytest.raises(SchedsimError, match="planner '<lambda>' returned a"):
            schedsim.plan(self.CHAIN, 32, lambda w, b: found)
        with pytest.raises(SchedsimError, match="neither a name nor a function"):
            schedsim.plan(self.CHAIN, 32, found) if found == 3 else get_planner(3)
