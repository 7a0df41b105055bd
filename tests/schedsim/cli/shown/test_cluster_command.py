"""The command line that a search of clusters prints."""

import json
import shlex

import pytest

from schedsim.cli.app import run


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(  # ZeRO 2
            ["--devices", "8", "--mem", "8GB", "--global-batch", "24"], marks=pytest.mark.slow
        ),
        ["--devices", "4", "--mem", "20GB", "--pipeline", "2", "--device", "a100-80gb"],
        ["--devices", "2", "--mem", "60GB", "--flash", "3", "--compile", "--torch", "2.8"],
        ["--devices", "4", "--mem", "60GB", "--state", "megatron", "--regather", "--host-mem", "0"],
        ["--devices", "2", "--mem", "60GB", "--efficiency", "0.5", "--loss-chunks", "4"],
        ["--devices", "16", "--mem", "60GB", "--network", "5", "--tensor", "1"],
    ],
)
def test_the_printed_command_predicts_the_step_again(more, capsys):
    """Of the search and of the command that it prints: the same bytes and seconds."""
    given = ["cluster", "--preset", "llama3.2-1b", "--seq", "1024", *more]
    assert run([*given, "--search", "--effort", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    line = shlex.split(found["again"])
    assert line[0] == "schedsim"
    assert run([*line[1:], "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    for name in ("step_s", "reserved_bytes", "peak_bytes", "degrees", "ranks", "budget_bytes"):
        assert again[name] == found[name], name
