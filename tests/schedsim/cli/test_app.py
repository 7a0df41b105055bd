"""The command group: every error ends in one way, and a reader who leaves is no error."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from four_stages import CHAIN

import schedsim
from schedsim.cli import app
from schedsim.cli.app import COMMANDS, run
from schedsim.files.document import save


@pytest.fixture
def chain_file(tmp_path) -> str:
    file = tmp_path / "chain.json"
    save(CHAIN, file)
    return str(file)


@pytest.fixture
def call(capsys):
    """Run the command line: (exit code, stdout, stderr)."""

    def invoke(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "--layers", "4", "--mem", "8G"], "8GB (powers of 1000)"),
        (["plan", "--layers", "4"], "--mem"),
        (["plan", "--mem", "8GB"], "no workload"),
        (["plan", "--layers", "x", "--mem", "8GB"], "--layers"),
        (["plan", "--layers", "4", "--mem", "8GB", "--planner", "roter"], "'rotor'"),
        (["plan", "--layers", "4", "--mem", "8GB", "--planner", "periodic", "--gap", "1"], "--gap"),
        (["plan", "--layers", "4", "--mem", "8GB", "--time-limit", "-1"], "--time-limit"),
        (
            ["plan", "--layers", "4", "--mem", "8GB", "-o", "no/such/folder/p.json"],
            "no/such/folder",
        ),
        (["plan", "nothing.json", "--mem", "8GB"], "nothing.json"),
        (["plan", "model.py:build", "--mem", "8GB"], "model.py:build"),
        (["plann"], "'plan'"),
        (["plan", "--layer", "4", "--mem", "8GB"], "--layer"),
        (["plot", "timeline", "--layers", "4", "-o", "x.gif"], ".svg"),
        (["compare", "--layers", "4", "--mem", "8GB", "--planners", "rotor,,"], "empty name"),
    ],
)
def test_usage_errors(call, arguments, says):
    """Exit 2, one error line and at most one hint, nothing on stdout."""
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert says in err
    lines = err.strip().splitlines()
    assert lines[0].startswith("error: ")
    assert len(lines) <= 2
    assert all(line.startswith("hint: ") for line in lines[1:])


def test_an_internal_fault_is_one_line(monkeypatch, call):
    """Exit 70 and how to see more, unless a traceback is asked for."""
    monkeypatch.setattr("schedsim.cli.env.platform.system", lambda: 1 / 0)
    code, _, err = call("env")
    assert code == 70
    assert "SCHEDSIM_DEBUG" in err
    monkeypatch.setitem(os.environ, "SCHEDSIM_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run(["env"])


def test_a_closed_pipe_is_quiet():
    """`schedsim planners | head -1` prints no traceback."""
    command = f"{sys.executable} -m schedsim planners | head -1"
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, cwd=Path(__file__).parent
    )
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", [["--level", "\n"], ["--times", "a\r\nb"]])
def test_a_line_break_that_was_typed_breaks_no_line(call, arguments):
    """One error, one hint."""
    code, _, err = call("plan", "--layers", "4", "--mem", "9GB", *arguments)
    assert code == 2
    assert re.fullmatch(r"error: .+\\n.*\nhint: .+\n", err)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["planners"], ["planners", "-o", "/dev/full"]])
def test_a_full_disk_is_one_line(arguments):
    """Standard output and a file: the place, the remedy, and no word of the interpreter's exit."""
    if "-o" in arguments:
        arguments = ["plan", "--synthetic", "uniform", "--layers", "4", "--mem", "99GB", "-o"]
        arguments.append("/dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "schedsim", *arguments],
            stdout=subprocess.DEVNULL if "-o" in arguments else full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    where = "/dev/full" if "-o" in arguments else "standard output"
    assert done.returncode == 2
    assert done.stderr == (
        f"error: {where}: No space left on device\n"
        "hint: free some space, or write to another place\n"
    )


def test_every_command_has_help_with_an_example(call):
    """The example is one of the command itself."""
    for command in COMMANDS:
        code, out, _ = call(command, "--help")
        assert code == 0
        assert f"schedsim {command}" in out


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (schedsim.SchedsimError("no", hint="do"), 2, ["error: no", "hint: do"]),
        (schedsim.SchedsimError("no"), 2, ["error: no", "hint: see schedsim env --help"]),
        (
            schedsim.InvalidScheduleError("no", rule="r", run_index=0, op_name="f", hint=""),
            1,
            ["error: no", "hint: see schedsim env --help"],
        ),
        (
            schedsim.InvalidWorkloadError("missing field", path="stages"),
            2,
            ["error: stages: missing field", f"hint: {app._SEE_FORMATS}"],
        ),
        (KeyboardInterrupt(), 130, ["error: interrupted"]),
        (
            FileNotFoundError(2, "No such file or directory", "x.json"),
            2,
            ["error: x.json: No such file or directory", "hint: check the path"],
        ),
        (OSError("disk full"), 2, ["error: disk full", "hint: check the path"]),
        (
            RuntimeError("two\n  lines"),
            70,
            [
                "error: internal: RuntimeError: two lines",
                "hint: this is a bug; SCHEDSIM_DEBUG=1 shows the traceback",
            ],
        ),
        (MemoryError(), 70, None),
    ],
)
def test_every_error_ends_in_a_line_and_a_code(call, monkeypatch, error, code, lines):
    """Whatever a command raises; nothing of it is on stdout."""

    def raises(*_: object) -> None:
        raise error

    monkeypatch.setattr("schedsim.cli.env.print_facts", raises)
    monkeypatch.delenv("SCHEDSIM_DEBUG", raising=False)
    got, out, err = call("env")
    assert (got, out) == (code, "")
    if lines is not None:
        assert [line for line in err.splitlines() if line] == lines


def test_the_log_goes_where_it_is_asked_for(monkeypatch):
    """By a level that there is; any other text asks for nothing."""
    asked = []
    monkeypatch.setattr(logging, "basicConfig", lambda **given: asked.append(given["level"]))
    for level in ("info", "DEBUG", "chatty", ""):
        monkeypatch.setenv("SCHEDSIM_LOG", level)
        app._log_to_stderr()
    assert asked == ["INFO", "DEBUG"]


def test_the_page_that_shows_files_is_there():
    page, title = re.fullmatch(
        r"(\S+), '(.+)', shows what such a file holds", app._SEE_FORMATS
    ).groups()
    assert f"## {title}\n" in (Path(__file__).parents[3] / page).read_text()


def test_near_misses(call):
    """A near command is named, and a near option of it; neither if nothing is near."""
    assert "did you mean 'estimate'?" in call("estimat")[2]
    assert "did you mean --planner?" in call("plan", "--planer", "x")[2]
    code, _, err = call("plan", "--zzzzzz")
    assert code == 2
    assert "hint: see schedsim plan --help" in err
    assert "one of plan, simulate" in call("qqqq")[2]


def test_commands_are_imported_when_they_are_called():
    """A group that knows its names; a name that is none has no command."""
    context = app.cli.make_context("schedsim", [], resilient_parsing=True)
    assert app.cli.list_commands(context) == list(COMMANDS)
    assert app.cli.get_command(context, "nobody") is None
    for name in COMMANDS:
        assert app.cli.get_command(context, name).name == name
