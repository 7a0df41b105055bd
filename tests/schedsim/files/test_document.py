"""Files of schedsim: which of the schemas one is, and its content as a chain, graph or plan."""

from __future__ import annotations

import pytest

import schedsim
from schedsim.errors import InvalidWorkloadError
from schedsim.files.document import from_dict, to_dict

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


def test_what_the_search_found_out_is_no_option():
    """The names under which planners recorded it among the options."""
    plan = schedsim.plan(CHAIN, 60)
    figures = {"blocks": 12, "kinds": 3, "line_s": 9.5, "least_memory_op": "B3"}
    old = from_dict(first_schema(plan, bound="cuts", bound_at="B2", **figures))
    assert (old.search.bound_by, old.search.bound_op) == ("cuts", "B2")
    assert old.search.figures == figures
    assert set(old.options) == set(plan.options)


@pytest.mark.parametrize(
    ("schema", "remedy"),
    [
        ("schedsim.pipeline-plan/1", "schedsim pipeline --replay reads it"),
        ("schedsim.device/1", "--device reads it"),
        ("schedsim.plan/9", "one of schedsim.chain/1"),
        ("mine", "one of schedsim.chain/1"),
    ],
)
def test_a_file_for_another_command_names_that_command(schema, remedy):
    with pytest.raises(InvalidWorkloadError) as found:
        from_dict({"schema": schema})
    assert remedy in found.value.hint
