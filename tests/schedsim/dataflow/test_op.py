"""Ops: what they keep of what they are given, where they write, and what is refused."""

from __future__ import annotations

import pytest

from schedsim.dataflow.op import Op
from schedsim.errors import InvalidWorkloadError


def test_a_caller_who_changes_what_was_passed_does_not_change_the_op():
    """Lists and dicts are copied."""
    reads, writes = ["x"], {"y": 1}
    op = Op("f", reads=reads, writes=writes)
    reads.append("z")
    writes["y"] = 2
    assert (op.reads, op.writes) == (("x",), {"y": 1})


def test_where_it_writes_and_whether_it_is_a_copy():
    """To the device of its stream unless it says so; a copy need not run, and moves bytes."""
    copy = Op("d2h:x", stream="d2h", reads=("x",), writes={"x@": 4}, pools={"x@": "host"},
              required=False)  # fmt: skip
    assert copy.is_copy
    assert copy.pool_of("x@") == "host"
    assert Op("f", stream="compute:2", writes={"y": 1}).pool_of("y") == "device:2"
    assert not Op("f", required=False).is_copy  # it computes
    assert not Op("m", stream="link:0-1").is_copy  # a message must be sent


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"name": ""}, "ops[3].name"),
        ({"phase": "sideways"}, "ops[3].phase"),
        ({"time_s": float("nan")}, "ops[3].time_s"),
        ({"workspace_bytes": -1}, "ops[3].workspace_bytes"),
        ({"saving_workspace_bytes": 0.5}, "ops[3].saving_workspace_bytes"),
        ({"reads": ("x", "x")}, "ops[3].reads[1]"),
        ({"writes": {"y": "4"}}, "ops[3].writes.y"),
        ({"optional": ("r",)}, "ops[3].optional[0]"),
        ({"in_place": {"y": "x"}}, "ops[3].in_place"),
    ],
)
def test_a_wrong_field_is_named(fields, path):
    """By its path in the file."""
    with pytest.raises(InvalidWorkloadError) as caught:
        Op(**{"name": "f", **fields}).check("ops[3]")
    assert caught.value.path == path


def test_an_unchecked_op_has_the_defaults_of_all_other_fields():
    """It is the op that the checked way makes."""
    checked = Op("a", "backward", 1.0, 2, ("x",), {"y": 3}, in_place={"y": "x"}, stream="link:a")
    made = Op.unchecked(
        "a", "backward", 1.0, 2, ("x",), {"y": 3}, in_place={"y": "x"}, stream="link:a"
    )
    assert made == checked
    assert Op.unchecked("a", "forward", 0.0, 0, (), {}, in_place={}) == Op("a")
