"""What the command line refuses, with which exit code, and what it leaves alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import schedsim
from schedsim.cli.app import run
from schedsim.files.document import save

CHAIN = schedsim.Chain.from_arrays(
    "four", 4, forward_s=[1] * 4, backward_s=[2] * 4, output_bytes=[4] * 4, saved_bytes=[20] * 4
)
# The same op names, other sizes: only the hash of the workload tells the two apart.
OTHER = schedsim.Chain.from_arrays(
    "other", 4, forward_s=[1] * 4, backward_s=[2] * 4, output_bytes=[4] * 4, saved_bytes=[21] * 4
)


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch) -> None:
    """Two workloads, a plan of the first, and a plan that says there is none."""
    monkeypatch.chdir(tmp_path)
    save(CHAIN, "chain.json")
    save(OTHER, "other.json")
    save(schedsim.plan(CHAIN, 60), "plan.json")
    run(["plan", "chain.json", "--mem", "10", "-o", "infeasible.json"])


@pytest.fixture
def call(capsys):
    """Run the command line: (exit code, stdout, stderr)."""

    def invoke(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("plan chain.json --mem 60 --layrs 3", 2, "did you mean --layers?"),
        ("plot frontier chain.json --order free -o x.svg", 2, "--order is for graphs"),
        ("plot frontier chain.json -o x.gif", 2, "use .svg, .png, .pdf or .json"),
        ("plot timelin chain.json -o x.svg", 2, "did you mean 'timeline'?"),
        ("plan chain.json --mem 60 --zero 1", 2, "both a workload file and --zero are given"),
        ("plan chain.json --mem 60 -o chain.json", 2, "would overwrite an input"),
        ("plan --layers 2 --times chain.json --mem 9GB -o chain.json", 2, "overwrite an input"),
        ("plan chain.json --mem 60 --certificate chain.json", 2, "overwrite an input"),
        ("plan chain.json --mem 60 --certificate p.json -o ./p.json", 2, "the file of -o, too"),
        ("simulate chain.json --schedule noise -o noise", 2, "overwrite an input"),
        ("pipeline --replay chain.json -o chain.json", 2, "overwrite an input"),
        ("profile chain.py:build -o chain.py", 2, "overwrite an input"),
        ("validate model:mlp chain.json -o chain.json", 2, "overwrite an input"),
        ("cluster --preset hf:chain.json -o chain.json", 2, "overwrite an input"),
        ("plan chain.json --mem 60 --gap nan", 2, "--gap nan is not at least 0"),
        ("plan chain.json --mem 60 --slots 0 --planner rotor", 2, "--slots 0 is not at least 1"),
        ("simulate chain.json plan.json plan.json", 2, "second plan"),
        ("simulate chain.json plan.json --schedule chain.json", 2, "both a plan and --schedule"),
        ("simulate chain.json --schedule noise", 2, "not a text file"),
        ("compare chain.json --mem 60 --planners store_all,rotr", 2, "did you mean 'rotor'?"),
        ("compare chain.json --mem 60 --planners dtr,cuts", 2, "dtr: planner 'dtr' does not take"),
        ("simulate other.json plan.json", 1, "another workload"),
        ("plot timeline other.json plan.json -o x.svg", 1, "another workload"),
        ("plot schedule chain.json infeasible.json -o x.svg", 1, "least budget"),
        ("plot timeline chain.json --mem 10 -o x.svg", 1, "least budget"),
        ("simulate chain.json infeasible.json", 1, "least budget"),
    ],
)
def test_refusals(call, line, code, says):
    """One error line, one hint, nothing on stdout and no picture."""
    Path("noise").write_bytes(bytes(range(128, 256)))
    before = Path("chain.json").read_bytes()
    got, out, err = call(*line.split())
    assert (got, out) == (code, "")
    assert says in err
    assert re.fullmatch(r"error: .+\nhint: .+\n", err)
    assert not Path("x.svg").exists()
    assert Path("chain.json").read_bytes() == before


@pytest.mark.parametrize("arguments", [[], ["plot"]])
def test_without_a_command_there_is_help(call, arguments):
    """On stderr, as a usage error: a script that forgot the command must notice."""
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: schedsim")
    assert "\nCommands:\n" in err


def test_compare_says_why_nothing_fits(call):
    """The rows, then the least budget of all of them, on stderr, exit 1."""
    code, out, err = call("compare", "chain.json", "--mem", "10", "--planners", "store_all,rotor")
    assert code == 1
    assert out.count("infeasible") == 2
    assert re.search(r"hint: the proven least budget is .*, by rotor: --mem \d+\n", err)


def test_two_problems_are_one_error(call):
    """A changed time and a passed budget end in one line."""
    document = json.loads(Path("plan.json").read_text())
    Path("plan.json").write_text(json.dumps(document | {"peak_bytes": 59}))
    code, _, err = call("simulate", "chain.json", "plan.json", "--mem", "50")
    assert code == 1
    assert err.count("error:") == 1
    assert "the plan says peak" in err
    assert "over the budget" in err


def test_an_infeasible_plan_is_written(call):
    """With --json and -o: the same document in both places."""
    code, out, _ = call("plan", "chain.json", "--mem", "10", "--json", "-o", "p.json")
    written, printed = json.loads(Path("p.json").read_text()), json.loads(out)
    assert (code, printed["status"]) == (1, "infeasible")
    assert written == printed


def test_interrupting_is_130(call, monkeypatch):
    """Control-C while planning."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("schedsim.cli.planning.one.try_plan", interrupted)
    code, _, err = call("plan", "chain.json", "--mem", "60")
    assert (code, err.strip().splitlines()[-1]) == (130, "error: interrupted")


@pytest.mark.slow
def test_pictures_are_reproducible(call):
    """The same command writes the same bytes: no dates, no random ids."""
    for suffix in ("svg", "pdf"):
        for name in ("one", "two"):
            code, out, err = call("plot", "timeline", "chain.json", "-o", f"{name}.{suffix}")
            assert (code, out, err) == (0, "", f"wrote {name}.{suffix}\n")
        assert Path(f"one.{suffix}").read_bytes() == Path(f"two.{suffix}").read_bytes()


@pytest.mark.parametrize("arguments", ["planners", "--help"])
def test_a_closed_pipe_is_not_a_no(arguments):
    """The reader leaves at once: quiet, and exit 0, as 1 would mean infeasible."""
    process = subprocess.Popen(
        [sys.executable, "-m", "schedsim", arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("--mem", "50"), "a larger --mem"),
        (("--allocator", "cuda-caching"), "schedsim plan --allocator cuda-caching"),
    ],
)
def test_a_replay_that_fails_says_what_to_do(call, arguments, remedy):
    """An error line, then a hint of what helps here."""
    code, _, err = call("simulate", "chain.json", "plan.json", *arguments)
    assert code == 1
    assert re.search(r"error: .+\nhint: .+\n$", err)
    assert remedy in err


@pytest.mark.parametrize("option", ["--gap nan", "--time-limit -1"])
def test_a_number_out_of_range_has_a_hint(call, option):
    """As every error has."""
    _, _, err = call("plan", "chain.json", "--mem", "60", *option.split())
    assert re.fullmatch(r"error: .+\nhint: .+\n", err)


def test_a_report_repeats_no_claim_that_the_replay_refutes(call):
    """An edited plan gives no page."""
    document = json.loads(Path("plan.json").read_text())
    Path("edited.json").write_text(json.dumps(document | {"peak_bytes": 59}))
    code, out, err = call("report", "chain.json", "edited.json", "-o", "page.html")
    assert (code, out) == (1, "")
    assert re.fullmatch(r"error: the plan says peak 59, .+\nhint: .+\n", err)
    assert not Path("page.html").exists()
