"""Plan files: every field comes back, and a plan that cannot be is refused by its field."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
from four_stages import CHAIN

import schedsim
from schedsim import InvalidWorkloadError
from schedsim.files.document import from_dict, to_dict
from schedsim.plans.least_budget import LeastBudget
from schedsim.plans.plan import with_candidates
from schedsim.plans.scope import FIXED_ORDER, PERSISTENT
from schedsim.plans.search import SearchRecord
from schedsim.plans.source import WorkloadSource

PLAN = schedsim.plan(CHAIN, 60)
NONE = schedsim.api.try_plan(CHAIN, 10)
PLANS = {
    "a chain's": PLAN,
    "none": NONE,
    "a search's": replace(
        PLAN,
        seed=7,
        search=SearchRecord("rotor", 12, "work", "cuts", "B1", {"blocks": 3, "line_s": 0.5}),
        options={"effort": 2.0, "allow": ["quantize"], "order": None},
    ),
    "with candidates": with_candidates(PLAN, [PLAN, NONE]),
    "with a floor": replace(PLAN, least=LeastBudget(50, "B1", 40, FIXED_ORDER)),
    **{
        f"from a {source.kind}": replace(PLAN, workload=replace(PLAN.workload, source=source))
        for source in (
            WorkloadSource("formula", {"layers": 4, "head": True}),
            WorkloadSource("file", path="größer.json"),
            WorkloadSource("model", {"level": "op"}, target="hf:gpt2"),
        )
    },
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_every_plan_survives_a_file(plan):
    """Equal in all of its fields, and the same document again."""
    document = json.loads(json.dumps(to_dict(plan), allow_nan=False))
    again = from_dict(document)
    assert again == plan
    assert to_dict(again) == document


def changed(plan: schedsim.Plan, path: str, value: object) -> dict[str, object]:
    document = copy.deepcopy(to_dict(plan))
    *before, last = path.split(".")
    place = document
    for name in before:
        place = place.setdefault(name, {})
    place[last] = value
    return document


@pytest.mark.parametrize(
    ("plan", "path", "value", "says"),
    [
        (PLAN, "schedule", None, "a plan with status 'optimal' must have a schedule"),
        (NONE, "schedule", ["F0"], "status 'infeasible' has none"),
        (PLAN, "peak_bytes", None, "null, but the plan has a schedule"),
        (PLAN, "gap", None, "null, but the plan has a schedule"),
        (PLAN, "overhead", -0.1, "zero or more"),
        (PLAN, "bound_scope", 3, "3 is not text"),
        (PLAN, "planning_s", "long", "'long'"),
        (PLAN, "workload.content_hash", None, "None is not text"),
        (PLAN, "workload.colour", "red", "unknown field"),
        (PLAN, "workload.source", {"kind": "web", "options": {}}, "source.kind: 'web' is unknown"),
        (PLAN, "workload.source", {"kind": "file"}, "source.options: missing field"),
        (PLAN, "search.ended_by", "boredom", "'boredom' is unknown"),
        (PLAN, "search.num_moves", 1.5, "1.5 is not an integer"),
        (PLAN, "search.figures", {"a": [[[[[[1]]]]]]}, "nested too deeply"),
        (PLAN, "options", [], "is not an object"),
        (PLAN, "versions", {"python": 3}, "versions.python"),
        (PLAN, "colour", "red", "unknown field"),
        (NONE, "proven_least", {"floor_bytes": 99, "scope": "any schedule"},
         "99 is more than min_feasible_bytes"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_is_refused(plan, path, value, says):
    """The message says what, the path says where."""
    with pytest.raises(InvalidWorkloadError) as caught:
        from_dict(changed(plan, path, value))
    assert says in caught.value.message
    assert caught.value.path.startswith(path.split(".")[0])


def test_what_is_proven_of_the_least_budget_is_kept():
    """The infeasible plan's least is proven, over the class that the planner searches."""
    document = to_dict(NONE)
    assert document["min_feasible_bytes"] == document["proven_least"]["floor_bytes"] > 10
    again = from_dict(document)
    assert again.proven_infeasible
    assert again.least.scope == PERSISTENT
    assert again.least.growing_bytes is None
    del document["proven_least"]
    assert not from_dict(document).proven_infeasible


def test_what_growing_segments_need_is_kept():
    plan = replace(NONE, least=replace(NONE.least, growing_bytes=12))
    assert from_dict(to_dict(plan)).least == plan.least
