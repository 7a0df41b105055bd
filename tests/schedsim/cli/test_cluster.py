"""``schedsim cluster``."""

import json

import pytest
from option_samples import CLUSTER, together, words

from schedsim.cli.app import run

SMALL = ["cluster", "--preset", "llama3.2-1b", "--devices", "8", "--seq", "512"]


def test_what_is_shown(capsys):
    """Reserved bytes, time, kinds; 0 where it fits."""
    assert run(SMALL) == 0
    out = capsys.readouterr().out
    assert "1,235,814,400 parameters" in out
    assert "by the allocator on the fullest rank" in out
    assert "optimizer state" in out


def test_json_and_a_budget(capsys):
    """One document; 1 where it does not fit."""
    assert run([*SMALL, "--pipeline", "2", "--batch", "2", "--mem", "1GB", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["budget_bytes"] == 10**9
    assert [rank["pipeline_rank"] for rank in document["ranks"]] == [0, 1]


def test_recomputation_that_fits(capsys):
    """Every layer by itself, within the budget; 1 where nothing fits."""
    asked = [*SMALL, "--batch", "8", "--recompute", "fit", "--json", "--mem"]
    assert run([*asked, "15GB"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "keep=" in document["training"]["recompute"]
    assert document["reserved_bytes"] <= 15 * 10**9
    assert run([*asked, "5GB"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["training"]["recompute"] == "full"


def test_a_trace(tmp_path):
    """The trace shows one rank with its streams."""
    path = tmp_path / "rank.trace.json"
    assert run([*SMALL, "-o", str(path)]) == 0
    names = {
        event["args"].get("name")
        for event in json.loads(path.read_text())["traceEvents"]
        if event["name"] == "thread_name"
    }
    assert names == {"compute", "link:shard"}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--tensor", "3"], "not the product"),
        (["--pipeline", "8", "--batch", "3"], "not a multiple of 8 micro-batches"),
        (["--recompute", "half"], "--recompute 'half'"),
        (["--recompute", "keep=gat"], "no layer of llama3.2-1b has such an op"),
        (["--device", "h1000"], "unknown"),
    ],
)
def test_errors_are_one_line(more, says, capsys):
    """Exit code 2, the option and a hint."""
    assert run([*SMALL, *more]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "hint:" in error


@pytest.mark.parametrize("option", sorted(CLUSTER))
def test_every_option_is_seen(option, capsys):
    """Bytes or seconds differ where it is left out."""
    found = []
    without = together("cluster", option, without=option)
    if option == "--fsdp":
        without.pop("--replicate")  # what is left follows from it
    if option == "--chunks":
        without.pop("--schedule")  # one stage a device is the default order
    for given in (together("cluster", option), without):
        assert run(["cluster", *words(given), "--json"]) in (0, 1)
        found.append(json.loads(capsys.readouterr().out))
    seen = [(one["reserved_bytes"], one["peak_bytes"], one["step_s"]) for one in found]
    assert seen[0] != seen[1]
