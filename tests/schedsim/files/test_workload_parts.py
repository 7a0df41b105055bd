"""Ops and variants in files: they come back whole, and say only what there is to say."""

from __future__ import annotations

import json

import pytest

from schedsim import InvalidWorkloadError, Op
from schedsim.dataflow.variants import ChosenVariant, GraphVariant, StageVariant
from schedsim.files.reader import Reader
from schedsim.files.workload_parts import (
    chosen_to_list,
    op_to_dict,
    read_chosen,
    read_graph_variants,
    read_op,
    read_stage_variants,
    variant_to_dict,
)

WHOLE = Op(
    "down",
    "backward",
    time_s=0.5,
    workspace_bytes=3,
    reads=("x", "w"),
    writes={"y": 4, "z": 5},
    optional=("z",),
    once=True,
    in_place={"y": "x"},
    stream="d2h",
    pools={"y": "host"},
    saving_workspace_bytes=0,
    required=False,
)


def read_again(item):
    return Reader(json.loads(json.dumps(item)), "item")


@pytest.mark.parametrize("op", [WHOLE, Op("f"), Op("g", stream="compute:1", reads=("x",))])
def test_an_op_comes_back_whole(op):
    """Every field of it."""
    assert read_op(read_again(op_to_dict(op))) == op


def test_a_plain_op_says_nothing_of_streams_and_pools():
    """Files of plain graphs stay plain; a workspace of 0 bytes while saving is something said."""
    plain = set(op_to_dict(Op("f")))
    assert plain == {
        *("name", "phase", "time_s", "workspace_bytes", "reads", "writes", "optional", "once")
    }
    more = set(op_to_dict(WHOLE)) - plain
    assert more == {"saving_workspace_bytes", "in_place", "queue", "pools", "required"}


STAGE = (
    StageVariant("int8", "quantize", saved_bytes=8),
    StageVariant("both", "quantize+approx", 9, 0.5, 0, 7),
)
GRAPH = GraphVariant(
    "int8 x",
    "quantize",
    (Op("enc", reads=("x",), writes={"x8": 1}), Op("dec", "backward", reads=("x8",))),
    {"g'": {"x": "x.again"}},
    {"f": {"bits": 2}},
)


def test_variants_come_back_whole():
    """Variants of a stage and of a graph come back; without the field there are none."""
    listed = {"variants": [variant_to_dict(one) for one in STAGE]}
    assert read_stage_variants(read_again(listed)) == STAGE
    assert read_graph_variants(read_again({"variants": [variant_to_dict(GRAPH)]})) == (GRAPH,)
    assert read_stage_variants(read_again({})) == read_graph_variants(read_again({})) == ()


def test_a_choice_names_its_stage():
    """A variant of a graph has none."""
    chosen = (ChosenVariant(STAGE[1], "s3"), ChosenVariant(GRAPH))
    items = chosen_to_list(chosen)
    assert [item.get("stage") for item in items] == ["s3", None]
    assert read_chosen(read_again({"variants": items})) == chosen


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"adds": [{"name": "enc"}]}, "item.variants[0].adds[0].phase"),
        ({"adds": [3]}, "item.variants[0].adds[0]"),
        ({"instead": {"g": {"x": 1}}}, "item.variants[0].instead.g.x"),
        ({"instead": []}, "item.variants[0].instead"),
        ({"writes": {"f": {"bits": -2}}}, "item.variants[0].writes.f.bits"),
        ({"stage": "s0"}, "item.variants[0].stage"),
    ],
)
def test_a_wrong_variant_of_a_graph_is_named(change, path):
    """By the field within it."""
    item = variant_to_dict(GRAPH) | change
    with pytest.raises(InvalidWorkloadError) as caught:
        read_graph_variants(read_again({"variants": [item]}))
    assert caught.value.path == path
