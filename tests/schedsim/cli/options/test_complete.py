"""What is offered for values: names that there are, each list's own, and files."""

from __future__ import annotations

import pytest
from click.shell_completion import BashComplete
from schedsim.algorithms import PLANNERS

from schedsim.cli.app import cli
from schedsim.cli.options.complete import OF_OPTIONS
from schedsim.cli.options.formula import flags
from schedsim.workloads import PRESETS, WorkloadOptions, build_workload
from schedsim.workloads.devices import device_names


def offered(line: str) -> list[tuple[str, str]]:
    """(kind, value) of what is offered for the last word of `line`."""
    *before, last = line.split(" ")
    shell = BashComplete(cli, {}, "schedsim", "_SCHEDSIM_COMPLETE")
    return [(item.type, item.value) for item in shell.get_completions(before, last)]


def names(line: str) -> list[str]:
    """The values that are offered as words."""
    return [value for kind, value in offered(line) if kind == "plain"]


def test_planners_and_presets():
    """All of them, those that begin so, and in a list only those not yet named."""
    assert names("plan --planner ") == list(PLANNERS)
    assert names("plan --planner chen") == ["chen_sqrt", "chen_greedy", "chen_articulation"]
    assert names("compare --planners rotor,chen_g") == ["rotor,chen_greedy"]
    assert "rotor,rotor" not in names("compare --planners rotor,")
    assert names("plan --preset ") == list(PRESETS)
    assert names("plan --preset gpt2-x") == ["gpt2-xl"]
    assert names("plan --dtype b") == ["bf16"]
    assert names("plan --granularity ") == ["layer", "block", "op"]


@pytest.mark.parametrize(
    "line", ["plan ch", "plan x.json -o ", "simulate --schedule ", "sweep e", "plot sweep r"]
)
def test_files_are_for_the_shell(line):
    """It knows them best."""
    assert offered(line) == [("file", line.split(" ")[-1])]


def test_every_value_that_is_offered_is_taken():
    """Each value offered for the formula makes a workload, or names something that is there."""
    assert set(OF_OPTIONS) <= {*flags(), "level"}
    for field in ("attention", "dtype", "granularity", "optimizer"):
        values = names(f"plan --{field} ")
        assert len(values) > 1
        for value in values:
            dtype = {"dtype": "fp32"} if value == "adam" else {}
            given = {"layers": 1, "static": "auto", **dtype, field: value}
            assert build_workload(WorkloadOptions(**given)).workload.op_names
    assert names("plan --device ") == device_names()
    for value in names("plan --synthetic "):
        assert build_workload(WorkloadOptions(synthetic=value, layers=3)).workload.num_stages
    assert names("plan --level ") == ["block", "op"]


def test_nothing_is_offered_that_does_not_begin_so():
    """And in a list only what is not named before the last comma."""
    assert names("plan --dtype x") == []
    offered_last = names("compare --planners rotor,frontier,")
    assert all(text.startswith("rotor,frontier,") for text in offered_last)
    last = [text.rpartition(",")[2] for text in offered_last]
    assert set(last) == set(PLANNERS) - {"rotor", "frontier"}
