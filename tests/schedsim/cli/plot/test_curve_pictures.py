"""``plot frontier`` and ``plot sweep``: curves of a workload, or of results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from four_stages import CHAIN
from training_graphs import unit_training_chain

import schedsim
from schedsim.cli.app import run


@pytest.fixture
def call(capsys):
    """Run the command line: (exit code, stdout, stderr)."""

    def invoke(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke


@pytest.mark.parametrize("suffix", ["svg", "json"])
def test_the_frontier_of_a_graph_is_written(call, tmp_path, suffix):
    """With a time limit, as picture and as numbers."""
    file, graph = tmp_path / f"frontier.{suffix}", tmp_path / "graph.json"
    schedsim.save(unit_training_chain(8), graph)
    options = ["--order", "free", "--time-limit", "0.5", "--points", "5"]
    assert call("plot", "frontier", str(graph), *options, "-o", str(file))[0] == 0
    magic = {"svg": b"<?xml", "png": b"\x89PNG", "json": b"{"}[suffix]
    assert file.read_bytes().startswith(magic)
    if suffix == "json":
        assert len(json.loads(file.read_text())["points"]) > 1


def test_the_numbers_of_a_chain_are_its_curve(call, folder):
    """Every break point, exact."""
    assert call("plot", "frontier", "chain.json", "-o", "curve.json")[0] == 0
    curve = schedsim.pareto(CHAIN)
    document = json.loads(Path("curve.json").read_text())
    expected = json.loads(json.dumps(curve.to_dict()))
    assert document.keys() == expected.keys()
    assert document["points"] == expected["points"]
    assert [point["budget_bytes"] for point in document["points"]] == [
        point.budget_bytes for point in curve.points
    ]


def test_planners_are_drawn_beside_it(call, folder):
    """One that fits nowhere on the curve is left out, and said."""
    line = ("plot", "frontier", "chain.json", "-o", "x.svg")
    code, _, err = call(*line, "--planners", "periodic, store_all")
    assert code == 0
    assert err == "wrote x.svg\n"
    svg = Path("x.svg").read_text()
    assert "periodic" in svg
    assert "store_all" in svg


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--planners", "rotor", "-o", "x.json"), "--planners is for pictures"),
        (("--points", "3", "-o", "x.svg"), "--points is for graphs, and four is a chain"),
        (("--time-limit", "3", "-o", "x.svg"), "--time-limit is for graphs"),
        (("-o", "x.gif"), "cannot draw '.gif'"),
        (("--planners", "nobody", "-o", "x.svg"), "unknown planner 'nobody'"),
    ],
)
def test_what_is_refused(call, folder, more, says):
    """And no file is there after it."""
    code, out, err = call("plot", "frontier", "chain.json", *more)
    assert (code, out) == (2, "")
    assert says in err
    assert not list(folder.glob("x.*"))


def test_results_without_rows_are_refused(call, folder):
    """As are those that are all errors: there is nothing to draw."""
    Path("r.jsonl").touch()
    for kind in ("sweep", "frontier"):
        code, _, err = call("plot", kind, "r.jsonl", "-o", "x.svg")
        assert code == 2
        assert "r.jsonl has no results yet" in err
