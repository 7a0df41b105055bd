"""What the shell completes, asked as the shells ask."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from click.shell_completion import BashComplete

from schedsim.cli.app import COMMANDS, cli, run


def offered(line: str) -> list[tuple[str, str]]:
    """(kind, value) of what is offered for the last word of `line`."""
    *before, last = line.split(" ")
    shell = BashComplete(cli, {}, "schedsim", "_SCHEDSIM_COMPLETE")
    return [(item.type, item.value) for item in shell.get_completions(before, last)]


def names(line: str) -> list[str]:
    """The values that are offered as words."""
    return [value for kind, value in offered(line) if kind == "plain"]


def test_commands_and_options():
    """Every command; the options of one; the commands of a group."""
    assert names("") == list(COMMANDS)
    assert names("pl") == ["plan", "plot", "planners"]
    assert "--planner" in names("plan --pl")
    assert names("plot f") == ["frontier"]
    assert names("plan --maximize ") == ["batch", "seq", "layers"]
    assert names("sweep --backend ") == ["loky", "dask", "ray"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_those_of_click(capsys, shell):
    """Each names the function and the variable that the program answers to."""
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_SCHEDSIM_COMPLETE" in script
    assert "schedsim" in script


def test_an_unknown_shell_is_refused(capsys):
    """With the three that there are."""
    assert run(["completion", "tcsh"]) == 2
    assert "bash" in capsys.readouterr().err


def test_the_program_answers_the_shell():
    """As the script calls it: words in the environment, one answer a line."""
    program = shutil.which("schedsim", path=os.path.dirname(sys.executable))
    if program is None:
        pytest.skip("the schedsim program is not beside this Python")
    asked = {
        "_SCHEDSIM_COMPLETE": "bash_complete",
        "COMP_WORDS": "schedsim plan --planner ro",
        "COMP_CWORD": "3",
    }
    done = subprocess.run([program], env={**os.environ, **asked}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "plain,rotor\n", "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_takes_the_script(tmp_path):
    """bash reads it and completes by it."""
    program = shutil.which("schedsim", path=os.path.dirname(sys.executable))
    if program is None:
        pytest.skip("the schedsim program is not beside this Python")
    script = tmp_path / "script"
    script.write_bytes(subprocess.run([program, "completion", "bash"], capture_output=True).stdout)
    lines = (
        f"source {script}; COMP_WORDS=(schedsim plan --preset gpt2-x); COMP_CWORD=3; "
        '_schedsim_completion schedsim; echo "${COMPREPLY[@]}"'
    )
    path = os.path.dirname(program) + os.pathsep + os.environ["PATH"]
    done = subprocess.run(
        ["bash", "-c", lines], env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert done.stdout == "gpt2-xl\n"
