"""``schedsim cluster --search``."""

import json
import re

import pytest

from schedsim.cli.app import run
from schedsim.cli.shown.cluster_choice import DEGREES

SMALL = ["cluster", "--preset", "llama3.2-1b", "--devices", "2", "--seq", "512", "--search"]


def test_what_is_shown(capsys):
    """The step, the search, the runners-up."""
    line = [*SMALL, "--global-batch", "2", "--mem", "60GB", "--effort", "4"]
    assert run(line) == 0
    out = capsys.readouterr().out
    assert "lower bound" in out
    assert "binds" in out
    assert "again        schedsim cluster --preset llama3.2-1b --devices 2 " in out
    assert all(name in out for name in DEGREES)
    assert run([*line, "--json"]) == 0
    search = json.loads(capsys.readouterr().out)["search"]
    assert search["num_simulated"] <= 4
    assert search["lower_bound_s"] > 0


def test_one_sequence_a_device_by_default(capsys):
    """As if it had been given."""
    line = [*SMALL, "--mem", "60GB", "--effort", "1", "--json"]
    assert run(line) == 0
    one = capsys.readouterr().out
    assert run([*line, "--global-batch", "2"]) == 0
    assert capsys.readouterr().out == one


@pytest.mark.slow
def test_nothing_fits(capsys):
    """Exit code 1, and the least that would do."""
    assert run([*SMALL, "--global-batch", "2", "--mem", "1GB"]) == 1
    error = capsys.readouterr().err
    assert "none of" in error
    assert "candidates fits" in error  # each is too large by its bound
    assert "--effort" not in error
    least = re.search(r"is the least found: (--mem \d+MiB)", error).group(1)
    assert run([*SMALL, "--global-batch", "2", *least.split()]) == 0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ([*SMALL, "--global-batch", "2"], "--search needs --mem"),
        ([*SMALL[:-1], "--effort", "2"], "--effort belongs to --search"),
        ([*SMALL, "--global-batch", "2", "--mem", "9GB", "--recompute", "full"], "is chosen"),
        ([*SMALL, "--global-batch", "2", "--mem", "9GB", "--effort", "0"], "--effort 0"),
        ([*SMALL[:-1], "--launch", "other"], "no launch settings for 'other'"),
    ],
)
def test_errors_are_one_line(line, says, capsys):
    """Exit code 2."""
    assert run(line) == 2
    assert says in capsys.readouterr().err
