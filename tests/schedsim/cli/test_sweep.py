"""``schedsim sweep`` and what reads its results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import schedsim
from schedsim.api import try_plan
from schedsim.cli.app import run
from schedsim.files.document import save
from schedsim.sweeps import ResultFile, read_rows
from schedsim.sweeps.execute import run_one

CHAIN = schedsim.Chain.from_arrays(
    "four", 4, forward_s=[1] * 4, backward_s=[2] * 4, output_bytes=[4] * 4, saved_bytes=[20] * 4
)
EXPERIMENT = """
workloads = ["chain.json", {synthetic = "uniform", layers = [3, 5]}]
budgets = ["60", "70%", "5"]
planners = ["auto", "rotor", "periodic"]
"""


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch) -> None:
    """An experiment of 27 runs in the current folder."""
    monkeypatch.chdir(tmp_path)
    save(CHAIN, "chain.json")
    Path("e.toml").write_text(EXPERIMENT)


@pytest.fixture
def call(capsys):
    """Run the command line: (exit code, stdout, stderr)."""

    def invoke(line: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(line.split())
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke


def test_rows_are_what_the_planners_say(call):
    """In the experiment's order, each with the numbers of a plan made alone."""
    code, out, err = call("sweep e.toml -o r.jsonl")
    rows = read_rows("r.jsonl")
    assert code == 0
    assert out.startswith("27 runs in r.jsonl: ")
    assert len(err.splitlines()) == 27
    assert [(r["workload"], r["budget"], r["planner"]) for r in rows[:4]] == [
        ("chain.json", "60", "auto"),
        ("chain.json", "60", "rotor"),
        ("chain.json", "60", "periodic"),
        ("chain.json", "70%", "auto"),
    ]
    assert (rows[3]["store_all_bytes"], rows[3]["budget_bytes"]) == (92, 64)
    for row in rows[:9]:
        plan = try_plan(CHAIN, row["budget_bytes"], row["planner"])
        for field in ("status", "peak_bytes", "makespan_s", "overhead", "min_feasible_bytes"):
            assert row[field] == getattr(plan, field)
    timings = [json.loads(line) for line in Path("r.jsonl.timings").read_text().splitlines()]
    assert {timing["key"] for timing in timings} == {row["key"] for row in rows}
    assert "planning_s" not in rows[0]


@pytest.mark.slow
def test_processes_change_nothing(call):
    """The same bytes by one process, by two, and again when there is nothing to do."""
    assert call("sweep e.toml -o one.jsonl")[0] == 0
    assert call("sweep e.toml -o two.jsonl --jobs 2")[0] == 0
    whole = Path("one.jsonl").read_bytes()
    assert Path("two.jsonl").read_bytes() == whole
    code, _, err = call("sweep e.toml -o one.jsonl --jobs 2")
    assert (code, err) == (0, "")
    assert Path("one.jsonl").read_bytes() == whole


def test_only_what_lacks_is_run(call):
    """Rows at hand are not computed again, whatever their order; others stay behind them."""
    call("sweep e.toml -o r.jsonl")
    whole = Path("r.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    Path("r.jsonl").write_bytes(b"".join(reversed(lines[5:])))
    _, _, err = call("sweep e.toml -o r.jsonl")
    assert [line.split("/")[0] for line in err.splitlines()] == ["23", "24", "25", "26", "27"]
    assert Path("r.jsonl").read_bytes() == whole
    Path("e.toml").write_text('workloads = [{name = "mine", target = "chain.json"}]\n'
                              'budgets = ["70%"]\nplanners = ["auto"]')  # fmt: skip
    _, _, err = call("sweep e.toml -o r.jsonl")
    rows = read_rows("r.jsonl")
    assert err == ""
    assert (rows[0]["workload"], rows[0]["key"]) == ("mine", json.loads(lines[3])["key"])
    assert len(rows) == 27


def test_a_run_that_fails_is_a_row(call):
    """The others go on; exit code 1 says that something went wrong; it can be run again."""
    Path("e.toml").write_text(
        EXPERIMENT.replace('"periodic"', '{name = "rotor", num_slots = 0}, "periodic"')
    )
    code, out, err = call("sweep e.toml -o r.jsonl")
    rows = [row for row in read_rows("r.jsonl") if row["status"] == "error"]
    assert code == 1
    assert "36 runs in r.jsonl" in out
    assert {row["error"]["type"] for row in rows} == {"ValueError"}
    assert "error: " in err
    assert "at least 1 slot" in err.splitlines()[-2]
    num_lines = len(call("sweep e.toml -o r.jsonl")[2].splitlines())
    assert num_lines == 2
    num_lines = len(call("sweep e.toml -o r.jsonl --retry-errors")[2].splitlines())
    assert num_lines == 2 + len(rows)


def dying(run_):
    """In the place of `run_one`: the process of one run dies, without a word."""
    if run_.planner == "rotor" and run_.budget == "60" and run_.label == "chain.json":
        os._exit(9)
    return run_one(run_)


@pytest.mark.slow
def test_a_process_that_dies_is_a_row(call, monkeypatch):
    """Those that ran beside it are run again; it alone is marked."""
    monkeypatch.setattr("schedsim.sweeps.execute._run_beside", lambda run_, parent: dying(run_))
    code, _, _ = call("sweep e.toml -o r.jsonl --jobs 2")
    rows = read_rows("r.jsonl")
    dead = [row for row in rows if row["status"] == "error"]
    assert code == 1
    assert len(rows) == 27
    assert [(row["planner"], row["budget"], row["error"]["type"]) for row in dead] == [
        ("rotor", "60", "ProcessDied")
    ]


def test_dry_run_shows_and_runs_nothing(call):
    """Every run, whether it is done, and its key."""
    code, out, _ = call("sweep e.toml -o r.jsonl --dry-run")
    assert (code, Path("r.jsonl").exists()) == (0, False)
    assert "27 runs, 1 at a time by loky, 0 done in r.jsonl, each within 120 s" in out
    call("sweep e.toml -o r.jsonl")
    assert "27 done in r.jsonl" in call("sweep e.toml -o r.jsonl --dry-run")[1]
    document = json.loads(call("sweep e.toml -o r.jsonl --dry-run --json")[1])
    assert [run_["key"] for run_ in document["runs"]] == [r["key"] for r in read_rows("r.jsonl")]


def test_two_at_once_are_refused(call):
    """While another holds the file."""
    with ResultFile("r.jsonl"):
        code, _, err = call("sweep e.toml -o r.jsonl")
    assert code == 2
    assert "another sweep is writing r.jsonl" in err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("sweep none.toml -o r.jsonl", "none.toml"),
        ("sweep e.toml -o e.toml", "would overwrite an input"),
        ("sweep e.toml -o chain.json", "would overwrite an input"),
        ("sweep e.toml -o other.json", "line 1 is no result"),
        ("sweep e.toml -o r.jsonl --jobs 0", "--jobs 0 is no number"),
        ("sweep e.toml -o r.jsonl --address tcp://x", "add --backend dask or ray"),
        ("compare r.jsonl --mem 60", "--mem does not go with r.jsonl"),
        ("compare r.jsonl chain.json", "a results file does not go with other files"),
        ("compare r.jsonl --layers 3", "--layers does not go with r.jsonl"),
        ("compare chain.json", "missing option '--mem'"),
        ("compare other.json --mem 60", "other.json"),
        ("plot frontier r.jsonl --points 3 -o x.svg", "--points does not go with r.jsonl"),
        ("plot sweep r.jsonl -o x.gif", "use .svg, .png or .pdf"),
    ],
)
def test_refusals(call, line, says):
    """Usage errors, before anything is run."""
    Path("other.json").write_text('{"layers": 3}\n')
    Path("r.jsonl").touch()
    code, out, err = call(line)
    assert (code, out) == (2, "")
    assert says in err


def test_compare_reads_results(call):
    """A line for each workload and budget, ascending; the least budget where nothing fits."""
    call("sweep e.toml -o r.jsonl")
    code, out, _ = call("compare r.jsonl")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == ["workload", "budget", "bytes", "bound", "auto", "rotor", "periodic"]
    assert lines[1].split("  ")[0] == "chain.json"
    assert "needs 36 B" in lines[1]
    assert "+16.67 % *" in lines[2]
    assert "bound over persistent schedules" in lines[-1]
    assert "periodic" not in call("compare r.jsonl --planners auto")[1]
    document = json.loads(call("compare r.jsonl --json")[1])
    assert len(document["rows"]) == 27


@pytest.mark.slow
def test_plots_read_results(call):
    """The same picture every time."""
    call("sweep e.toml -o r.jsonl")
    for kind in ("sweep", "frontier"):
        for name in ("one.svg", "two.svg"):
            assert call(f"plot {kind} r.jsonl -o {name}")[0] == 0
        assert Path("one.svg").read_bytes() == Path("two.svg").read_bytes()


def test_a_model_is_measured_once(call, monkeypatch):
    """Its workload is kept beside the results: measured again, it would be another."""
    from schedsim.cli.given.loaded import Loaded
    from schedsim.cli.given.workload_source import Source

    measured = []

    def read(source: Source) -> Loaded:
        measured.append(source.files)
        return Loaded(CHAIN, (), None, CHAIN)

    monkeypatch.setattr("schedsim.cli.sweep.read", read)
    Path("my.py").write_text("def build(): ...")
    Path("e.toml").write_text('workloads = ["my.py:build"]\nbudgets = ["70%"]')
    assert "measured when the sweep begins" in call("sweep e.toml -o r.jsonl --dry-run")[2]
    assert measured == []
    assert call("sweep e.toml -o r.jsonl")[0] == 0
    assert call("sweep e.toml -o r.jsonl")[0] == 0
    assert len(measured) == 1
    Path("my.py").write_text("def build(): return 1")
    assert call("sweep e.toml -o r.jsonl")[0] == 0
    assert len(measured) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "module"), [("dask", "distributed"), ("ray", "ray")])
def test_clusters(backend, module):
    """The same file by joblib's other backends, on a cluster of this machine; a hint without."""
    arguments = ["e.toml", "-o", "r.jsonl", "--jobs", "2", "--backend", backend]
    command = [sys.executable, "-m", "schedsim", "sweep", *arguments]
    # Without it, Ray writes a token into the home folder.
    settings = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, env=settings)
    if find_spec(module) is None:
        assert done.returncode == 2
        assert f"pip install 'schedsim[{backend}]'" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    run(["sweep", "e.toml", "-o", "here.jsonl"])
    assert Path("r.jsonl").read_bytes() == Path("here.jsonl").read_bytes()
