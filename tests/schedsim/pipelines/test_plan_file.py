"""Plans of pipelines in files: what is read, and what is refused by the place of its fault."""

from __future__ import annotations

import copy
import json

import pytest

from schedsim.cli.app import run
from schedsim.errors import InvalidScheduleError, InvalidWorkloadError
from schedsim.pipelines import StagePlan
from schedsim.pipelines.plan_file import PIPELINE_PLAN_SCHEMA, read_pipeline_plan
from schedsim.plans.source import WorkloadSource

SMALL = ["--layers", "8", "--hidden", "64", "--heads", "4", "--seq", "32"]
PIPE = ["pipeline", *SMALL, "--stages", "4", "--micro-batches", "8"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": "schedsim.plan/1"}, "no plan of a pipeline"),
        ({"step": None}, "no schedule"),
        ({"cuts": "all"}, "cuts: "),
        ({"stage_plans": [["B0 B1"]]}, "no backward of 2 layers"),
        ({"stage_plans": [[1]]}, "stage_plans[0][0]: 1 is not text"),
        ({"cuts": [0, 8]}, "has 1 stages instead of 4"),
    ],
)
def test_spoiled_plans(capsys, tmp_path, change, says):
    """A file that is no plan, or was edited, is refused with the field."""
    file = tmp_path / "plan.json"
    assert run([*PIPE, "-o", str(file)]) == 0
    document = json.loads(file.read_text()) | change
    file.write_text(json.dumps(document))
    assert run([*PIPE, "--replay", str(file)]) in (1, 2)
    assert says in capsys.readouterr().err


DOCUMENT = {
    "schema": PIPELINE_PLAN_SCHEMA,
    "order": "zero-bubble",
    "num_devices": 2,
    "num_micro_batches": 3,
    "cuts": [0, 1, 3],
    "options": {"most_owed": 1},
    "stage_plans": [["B0"], ["F0 B1 B0", "B1 B0", "B1 B0"]],
    "budget_bytes": None,
    "step": {"peak_bytes": 40, "makespan_s": 2.5, "bubble": 0.25},
    "source": {"kind": "formula", "options": {"layers": 3}},
    "given": {"link": "25GB/s"},
    "candidates": "whatever another version writes",
}


def read(tmp_path, document):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(document))
    return read_pipeline_plan(file)


def test_everything_that_a_replay_needs_is_read(tmp_path):
    """What it does not need may be there; what has a default may be missing."""
    plan = read(tmp_path, DOCUMENT)
    assert (plan.order_name, plan.num_devices, plan.num_micro_batches) == ("zero-bubble", 2, 3)
    assert (plan.cuts, plan.most_owed, plan.budget_bytes) == ((0, 1, 3), 1, None)
    assert plan.stage_plans[0] == (StagePlan(("B0",)),)
    assert [one.num_replays for one in plan.stage_plans[1]] == [1, 0, 0]
    assert (plan.peak_bytes, plan.makespan_s) == (40, 2.5)
    assert plan.source == WorkloadSource("formula", {"layers": 3})
    assert plan.given == {"link": "25GB/s"}
    less = {k: v for k, v in DOCUMENT.items() if k not in ("source", "given")}
    plan = read(tmp_path, less | {"options": {}, "budget_bytes": 40})
    assert (plan.source, plan.given, plan.most_owed, plan.budget_bytes) == (None, {}, None, 40)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("order", 3, "order: 3 is not text"),
        ("num_devices", 0, "num_devices: 0 is not at least 1"),
        ("num_micro_batches", 1.5, "num_micro_batches: 1.5 is not an integer"),
        ("cuts", [], "cuts: fewer than the two ends"),
        ("cuts", [0, True], "cuts[1]: True is no layer's number"),
        ("cuts", None, "cuts: None is not a list"),
        ("options.most_owed", -1, "options.most_owed: -1 is not at least 0"),
        ("stage_plans", ["B0"], "stage_plans[0]: 'B0' is not a list"),
        ("stage_plans", [["B0"], ["B0", 1]], "stage_plans[1][1]: 1 is not text"),
        ("budget_bytes", "much", "budget_bytes: 'much' is not a whole number"),
        ("step.peak_bytes", -1, "step.peak_bytes: -1 is negative"),
        ("step.makespan_s", "long", "step.makespan_s: 'long'"),
        ("step", [], "step: [] is not an object"),
        ("source", {"kind": "web"}, "source.kind: 'web' is unknown"),
        ("given", [], "given: [] is not an object"),
    ],
)
def test_a_fault_is_named_by_its_place(tmp_path, path, value, says):
    """With the file, the value, and a remedy."""
    document = copy.deepcopy(DOCUMENT)
    *before, last = path.split(".")
    place = document
    for name in before:
        place = place[name]
    place[last] = value
    with pytest.raises(InvalidWorkloadError) as caught:
        read(tmp_path, document)
    assert f"plan.json: {says}" in caught.value.message
    assert caught.value.path.startswith(path)
    assert caught.value.hint


def test_other_documents_are_none(tmp_path):
    """A list, another schema; a stage plan that is no backward is an illegal schedule."""
    for document in ([], {"schema": "schedsim.plan/2"}):
        with pytest.raises(InvalidWorkloadError, match="no plan of a pipeline"):
            read(tmp_path, document)
    with pytest.raises(InvalidScheduleError, match="no backward of 1 layers"):
        read(tmp_path, DOCUMENT | {"stage_plans": [["F0 F1 B0"]]})
