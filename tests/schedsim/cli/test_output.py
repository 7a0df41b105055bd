"""What the command line looks like: the exact text in a pipe, a terminal, and what is loaded."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from schedsim.algorithms import all_planners

import schedsim
from schedsim.cli.app import COMMANDS, run
from schedsim.cli.options.typed_sizes import size_text
from schedsim.files.document import save
from schedsim.units import parse_bytes

CHAIN = schedsim.Chain.from_arrays(
    "four", 4, forward_s=[1] * 4, backward_s=[2] * 4, output_bytes=[4] * 4, saved_bytes=[20] * 4
)
TIME = re.compile(r"[\d.,]+ (?:s|ms|us|ns)\b")

FORMULA_OPTIONS = {
    "--attention", "--batch", "--data-parallel", "--device", "--dtype", "--efficiency",
    "--granularity", "--head", "--heads", "--hidden", "--layers", "--level", "--optimizer",
    "--preset", "--remeasure", "--seed", "--seq", "--sequence-parallel", "--static", "--synthetic",
    "--tensor-parallel", "--times", "--zero",
}  # fmt: skip
OWN_OPTIONS = {
    ("plan",): {
        *("--accumulate", "--certificate", "--chunk", "--ways"),
        *("--allow", "--gap", "--json", "--maximize", "--mem", "--order", "--output"),
        *("--effort", "--planner"),
        *("--search-seed", "--slots", "--time-limit"),
        *("--alloc-conf", "--allocator", "--memory-level"),
        *("--host-latency", "--host-mem", "--link", "--keep", "--recompute"),
    },
    ("simulate",): {
        *("--alloc-conf", "--allocator", "--capacity", "--json", "--mem", "--output", "--schedule"),
    },
    ("compare",): {
        *("--host-latency", "--host-mem", "--json", "--link", "--mem", "--output", "--planners"),
        *("--effort", "--time-limit", "--keep", "--recompute"),
    },
    ("plot", "timeline"): {
        *("--against", "--alloc-conf", "--allocator", "--capacity", "--mem", "--output"),
        "--schedule",
    },
    ("plot", "gantt"): {"--capacity", "--mem", "--output", "--schedule"},
    ("plot", "schedule"): {"--mem", "--output"},
    ("plot", "frontier"): {
        *("--order", "--output", "--planners", "--points", "--time-limit", "--keep", "--recompute"),
    },
}


@pytest.fixture(autouse=True)
def chain_file(tmp_path, monkeypatch) -> str:
    """``chain.json`` in the current folder, so that golden text has no other path in it."""
    monkeypatch.chdir(tmp_path)
    save(CHAIN, "chain.json")
    return "chain.json"


def start(*arguments: str, **more) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, both streams piped."""
    command = [sys.executable, "-m", "schedsim", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


@pytest.mark.slow
def test_plan_in_a_pipe():
    """The whole text; recomputing F0 and F1 for 2 s more is what 60 bytes cost."""
    done = start("plan", "chain.json", "--mem", "60")
    text = TIME.sub("TIME", done.stdout.split("\n", 3)[2]) + "\n" + done.stdout.split("\n", 3)[3]
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("chain four from chain.json, 4 stages\n\n")
    assert text == (
        "plan            optimal, by frontier in TIME\n"
        "budget          60 B\n"
        "peak            60 B at B3 (s3), run 5 of 11\n"
        "  checkpoints          8 B\n"
        "  saved               44 B\n"
        "  gradients            8 B\n"
        "store-all peak  92 B, of which the plan needs 65.2 %\n"
        "step time       14 s, +16.67 % over store-all 12 s\n"
        "lower bound     14 s over persistent schedules, gap 0.00 %\n"
        "recomputed      2 of 11 op runs\n"
        "\n"
        "next\n"
        "  schedsim plan chain.json --mem 60 -o plan.json    # keep it\n"
        "  schedsim simulate plan.json                       # replay it\n"
        "  schedsim plot timeline plan.json -o timeline.svg  # see its memory\n"
        "  schedsim explain plan.json                        # why its peak is there\n"
        "  schedsim compare chain.json --mem 60              # other planners\n"
    )


def test_compare_in_a_pipe(capfd):
    """Columns aligned with spaces, no trailing ones, no escape codes."""
    assert run(["compare", "chain.json", "--mem", "60", "--planners", "store_all,rotor"]) == 0
    out, err = capfd.readouterr()
    rows = [re.split(r" {2,}", line) for line in out.splitlines()[3:6]]
    assert err == ""
    assert [len(row) for row in rows] == [7, 7, 7]
    assert rows[1][:6] == ["store_all", "infeasible", "needs 92 B", "-", "-", "-"]
    assert rows[2][:6] == ["rotor", "optimal", "60 B", "14 s", "+16.67 %", "0.00 %"]
    assert "\x1b" not in out
    assert not re.search(r" $", out, re.MULTILINE)


def test_planners_fit_a_hundred_columns_in_a_pipe(capsys):
    """No cell is lost: the words are those of the table's own rows, over several lines."""
    assert run(("planners",)) == 0
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= 100
    words = set(text.split())
    for info in all_planners().values():
        assert set(f"{info.complexity} {info.optimal_for} {info.summary}".split()) <= words


def test_json_is_alone_on_stdout(capfd):
    """Every command with --json prints one document; narration is elsewhere.

    Of all that reaches the streams of the process, whoever writes there.
    """
    for arguments in (
        ["plan", "chain.json", "--mem", "60"],
        ["simulate", "chain.json"],
        ["compare", "chain.json", "--mem", "60"],
        ["planners"],
        ["env"],
    ):
        assert run([*arguments, "--json"]) == 0
        assert json.loads(capfd.readouterr().out)["schema"].startswith("schedsim.")


@pytest.mark.parametrize("code", ["import schedsim", "run(['--help'])", "run(['plan', '--help'])"])
def test_nothing_heavy_is_loaded(code):
    """Neither to import the package nor to ask for help."""
    heavy = ("torch", "matplotlib", "scipy.optimize", "numba", "rich")
    script = (
        "import sys, schedsim\nfrom schedsim.cli.app import run\n"
        f"{code}\nprint([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("path", OWN_OPTIONS, ids=" ".join)
def test_options_are_frozen(path, capsys):
    """Scripts depend on these names: a new one is added here on purpose."""
    run([*path, "--help"])
    found = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", capsys.readouterr().out, re.MULTILINE))
    assert found - {"--help"} == OWN_OPTIONS[path] | FORMULA_OPTIONS


def test_help_lists_every_command_in_full(capsys):
    """No description is cut off."""
    run(["--help"])
    out = capsys.readouterr().out
    assert "..." not in out.split("Commands:")[1]
    assert all(f"\n  {command} " in out for command in COMMANDS)


@pytest.mark.parametrize("text", ["8GB", "24GiB", "1500MB", "3MiB", "3271557121", "60", "0"])
def test_size_text_is_exact_and_short(text):
    """What is suggested gives the very same number of bytes, as people write it."""
    assert size_text(parse_bytes(text)) == text
