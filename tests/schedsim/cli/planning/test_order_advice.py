"""What a free order of a graph's ops would save is said where nobody has asked for one."""

from __future__ import annotations

import re
import shlex

import pytest

from schedsim import Schedule, save, simulate
from schedsim.cli.app import run
from schedsim.workloads.synthetic_graphs import wide


@pytest.fixture
def graph():
    return wide(150, 1)


@pytest.fixture
def call(capsys, tmp_path, graph):
    """``schedsim plan`` of the graph: (exit code, stdout, stderr)."""
    save(graph, tmp_path / "graph.json")

    def invoke(*arguments: str) -> tuple[int, str, str]:
        words = ["plan", str(tmp_path / "graph.json"), "--effort", "0.3", *arguments]
        code = run(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke


def _peak(graph) -> int:
    return simulate(graph, Schedule.store_all(graph)).peak_bytes


def test_another_order_needs_less(call, graph):
    """The last of the next commands asks for it, says how much less, and does plan in less time."""
    code, out, _ = call("--mem", str(int(0.75 * _peak(graph))))
    assert code == 0
    command, why = out.splitlines()[-1].split("  # ")
    assert re.fullmatch(r"in another order store-all needs \d+ % less", why)
    assert command.rstrip().endswith("--order free")
    assert run(shlex.split(command)[1:]) == 0


def test_another_order_fits_as_it_is(call, graph):
    """Nothing would have to be recomputed."""
    code, out, _ = call("--mem", str(int(0.95 * _peak(graph))))
    assert code == 0
    assert out.splitlines()[-1].endswith("# in another order it fits without recomputation")


@pytest.mark.parametrize(
    "more",
    [
        ("--order", "fixed"),
        ("--order", "free"),
        ("--planner", "local_search"),
        ("--keep", "f7"),
    ],
    ids=" ".join,
)
def test_what_leaves_no_choice_has_no_such_line(call, graph, more):
    """An order or a planner was given, rules hold, or the budget is what an allocator reserves."""
    code, out, _ = call("--mem", str(int(0.9 * _peak(graph))), *more)
    assert code == 0
    assert "another order" not in out


@pytest.mark.slow
def test_what_an_allocator_reserves_is_not_compared_with_an_order(call, graph):
    """The bytes of an order are those of its tensors: another one needs less, and reserves more."""
    code, _, err = call("--mem", str(int(0.995 * _peak(graph))), "--allocator", "best-fit")
    assert code == 1
    assert "the least budget found" in err
    assert "--order free" not in err


def test_a_plan_without_recomputation_has_no_such_line(call, graph):
    """There is nothing to save."""
    code, out, _ = call("--mem", str(_peak(graph)))
    assert code == 0
    assert "another order" not in out


@pytest.mark.slow
def test_where_nothing_fits_the_least_of_a_free_order_is_named(call):
    """A budget that a plan in a free order does meet."""
    code, _, err = call("--mem", "20%")
    assert code == 1
    (row,) = [line for line in err.splitlines() if line.startswith("  --order free")]
    found = re.fullmatch(r"  --order free  least ([\d.]+) kB \([\d.]+ KiB\)", row)
    assert found
    code, _, err = call("--mem", f"{float(found[1]) * 1.01}kB", "--order", "free")
    assert (code, err) == (0, "")
