"""Plan files of the first schema, whose options held what a plan runs on, still load."""

from __future__ import annotations

import pytest

import schedsim
from schedsim.files.document import from_dict, to_dict
from schedsim.plans.levels import MemoryLevel
from schedsim.plans.links import Link
from schedsim.plans.setting import AllocatorChoice, StepChanges

CHAIN = schedsim.Chain.from_arrays(
    "four", 4, forward_s=[1] * 4, backward_s=[2] * 4, output_bytes=[4] * 4, saved_bytes=[20] * 4
)


def first_schema(plan: schedsim.Plan, **options: object) -> dict[str, object]:
    """`plan` as the first schema wrote it."""
    document = to_dict(plan)
    del document["setting"], document["search"]
    document["schema"] = "schedsim.plan/1"
    document["options"] = {**document["options"], **options}
    return document


def test_a_plan_with_a_link_replays():
    """The link and the host memory stood among the options."""
    plan = schedsim.plan(CHAIN, 60, link="64B/s")
    one = {"bytes_per_s": 64.0, "latency_s": 0.0}
    link = {"d2h": one, "h2d": one}
    old = from_dict(first_schema(plan, link=link, host_bytes=None, chosen="offload", moves=12))
    assert old.setting.link is not None
    assert old.setting.link.d2h == Link(64.0)
    assert (old.found_by, old.search.num_moves) == ("offload", 12)
    assert old.simulate(CHAIN).makespan_s == plan.makespan_s
    assert "link" not in old.options


def test_levels_an_allocator_and_a_step_are_typed():
    """Each was a group of options."""
    plan = schedsim.plan(CHAIN, 60)
    level = {"num_slots": 3, "write_s": 0.5, "read_s": 0.25}
    old = from_dict(
        first_schema(
            plan,
            levels=[level],
            allocator="best-fit",
            allocator_options={"alignment_bytes": 4},
            reserved_bytes=56,
            inner_budget_bytes=50,
            num_emptied=2,
            level="op",
            structure="sha256:0",
            added_bytes=12,
            accumulate=3,
            interrupted=True,
        )
    )
    assert old.setting.levels is not None
    assert old.setting.levels.levels == (MemoryLevel(3, 0.5, 0.25),)
    assert old.setting.allocator == AllocatorChoice("best-fit", {"alignment_bytes": 4}, 50, 56, 2)
    assert old.setting.step == StepChanges("op", "sha256:0", 12, accumulate=3)
    assert old.search.interrupted
    assert set(old.options) == set(plan.options)


@pytest.mark.parametrize("link", [{"d2h": {}}, {"d2h": {"bytes_per_s": -1}, "h2d": {}}, "pcie4"])
def test_a_broken_link_is_refused_by_name(link):
    """One line that names the field."""
    with pytest.raises(schedsim.SchedsimError):
        from_dict(first_schema(schedsim.plan(CHAIN, 60), link=link))
