"""Chains: what is refused and where, and the graph that a chain is lowered to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from schedsim import Chain, InvalidWorkloadError, Schedule, Stage, simulate
from schedsim.checks.value_checks import MAX_BYTES
from schedsim.dataflow.variants import StageVariant

FIELDS = {"forward_s": 1, "backward_s": 2, "output_bytes": 4, "saved_bytes": 10}
STAGE = Stage("s0", **FIELDS)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"name": ""}, "name"),
        ({"input_bytes": -1}, "input_bytes"),
        ({"input_bytes": 1.0}, "input_bytes"),
        ({"static_bytes": None}, "static_bytes"),
        ({"loss_s": float("nan")}, "loss_s"),
        ({"loss_workspace_bytes": True}, "loss_workspace_bytes"),
        ({"stages": ()}, "stages"),
        ({"stages": (STAGE, STAGE)}, "stages[1].name"),
        ({"stages": (replace(STAGE, name="a\n"),)}, "stages[0].name"),
        ({"stages": (replace(STAGE, forward_s=-1),)}, "stages[0].forward_s"),
        ({"stages": (replace(STAGE, backward_s="2"),)}, "stages[0].backward_s"),
        ({"stages": (replace(STAGE, saved_bytes=3),)}, "stages[0].saved_bytes"),
        ({"stages": (replace(STAGE, forward_workspace_bytes=-1),)},
         "stages[0].forward_workspace_bytes"),
        ({"stages": (replace(STAGE, backward_workspace_bytes=0.5),)},
         "stages[0].backward_workspace_bytes"),
        ({"stages": (replace(STAGE, saving_workspace_bytes=-1),)},
         "stages[0].saving_workspace_bytes"),
        ({"stages": (replace(STAGE, variants=[StageVariant("v", "quantize", 3)]),)},
         "stages[0].variants[0].saved_bytes"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(fields, path):
    """By its path, as in a file."""
    with pytest.raises(InvalidWorkloadError) as caught:
        Chain(**{"name": "c", "input_bytes": 4, "stages": (STAGE,), **fields})
    assert caught.value.path == path


@pytest.mark.parametrize("place", ["output_bytes", "saved_bytes", "saving_workspace_bytes"])
def test_all_sizes_together_are_a_size(place):
    """Two thirds of what is allowed pass once, and not twice: so that no sum overflows."""
    big = MAX_BYTES // 3 * 2 // (2 if place == "output_bytes" else 1)
    sizes = {**FIELDS, "saved_bytes": max(10, big if place != "saving_workspace_bytes" else 10)}
    stage = replace(Stage("s0", **sizes), **{place: big})
    Chain("c", 0, (stage,))
    with pytest.raises(InvalidWorkloadError, match="all sizes together"):
        Chain("c", 0, (stage, replace(stage, name="s1")))


def test_the_graph_of_a_chain_by_hand():
    """The second stage saves its output alone: it has no bundle besides, and writes none."""
    stages = (
        Stage("a", 1.0, 2.0, 4, 10, 1, 3, saving_workspace_bytes=2),
        Stage("b", 3.0, 5.0, 6, 6),
    )
    graph = Chain("two", 7, stages, static_bytes=9, loss_s=0.5, loss_workspace_bytes=8).graph
    assert graph.op_names == ("F0", "F1", "loss", "B1", "B0")
    assert (graph.inputs, graph.static_bytes, graph.results) == ({"a0": 7}, 9, ())
    assert [op.phase for op in graph.ops] == ["forward"] * 2 + ["loss"] + ["backward"] * 2
    assert [op.time_s for op in graph.ops] == [1.0, 3.0, 0.5, 5.0, 2.0]
    assert [op.workspace_bytes for op in graph.ops] == [1, 0, 8, 0, 3]
    assert [op.saving_workspace_bytes for op in graph.ops] == [2, None, None, None, None]
    assert [dict(op.writes) for op in graph.ops] == [
        {"a1": 4, "r1": 6},
        {"a2": 6},
        {"d2": 6},
        {"d1": 4},
        {},  # nobody reads the gradient of the input
    ]
    assert [op.optional for op in graph.ops] == [("r1",), (), (), (), ()]
    assert [op.reads for op in graph.ops] == [
        ("a0",),
        ("a1",),
        ("a2",),
        ("d2", "a1", "a2"),
        ("d1", "a0", "a1", "r1"),
    ]


def test_what_is_known_of_a_chain():
    """Its ops by name and place, its sizes, its time, added up without rounding."""
    stages = tuple(Stage(f"s{i}", 0.1, 0.1, i + 1, i + 1) for i in range(5))
    chain = Chain("five", 9, stages, loss_s=1e-17)
    assert chain.op_names[chain.loss_index] == "loss"
    for i in range(5):
        assert chain.op_names[i] == f"F{i}"
        assert chain.op_names[2 * chain.num_stages - i] == f"B{i}"
    assert chain.activation_bytes().tolist() == [9, 1, 2, 3, 4, 5]
    assert chain.store_all_s == 1.0  # one by one, ten tenths are a little less than 1
    assert chain.busiest_stream_s == chain.graph.store_all_s == 1.0
    assert chain.stage_label("B3") == "B3 (s3)"
    assert chain.stage_label("loss") == "loss"


def test_columns_become_stages():
    """Numbers of numpy become Python's own, so that they are written to files like any other."""
    chain = Chain.from_arrays(
        "two",
        np.int64(4),
        forward_s=np.array([1.0, 2.0]),
        backward_s=[2, 3],
        output_bytes=np.array([4, 5], np.int32),
        saved_bytes=(10, 11),
        backward_workspace_bytes=np.array([0, 7]),
        static_bytes=np.int64(3),
    )
    assert chain == Chain(
        "two", 4, (Stage("s0", 1.0, 2, 4, 10), Stage("s1", 2.0, 3, 5, 11, 0, 7)), static_bytes=3
    )
    assert {type(chain.input_bytes), type(chain.stages[1].output_bytes)} == {int}
    assert type(chain.stages[0].forward_s) is float


@pytest.mark.parametrize(
    ("column", "values", "says"),
    [
        ("saved_bytes", [10], "saved_bytes: 1 entries, but forward_s has 2"),
        ("backward_workspace_bytes", [0] * 3, "backward_workspace_bytes: 3 entries"),
        ("output_bytes", [4.0, 4.0], "stages[0].output_bytes: 4.0 is not a whole number"),
        ("output_bytes", np.array([[4, 4], [4, 4]]), "output_bytes[0]: [4, 4] is not one number"),
        ("backward_s", [1, None], "stages[1].backward_s: None"),
    ],
)
def test_columns_that_do_not_fit_are_named(column, values, says):
    """With their length, or with the stage where they are wrong."""
    columns = {name: [value] * 2 for name, value in FIELDS.items()}
    with pytest.raises(InvalidWorkloadError) as caught:
        Chain.from_arrays("two", 4, **{**columns, column: values})
    assert says in str(caught.value)


def test_the_loss_is_charged_like_any_op():
    """Its workspace beside all that the forward kept: 4 + 10 + 4 and 100."""
    chain = Chain("one", 4, (STAGE,), loss_s=1.0, loss_workspace_bytes=100)
    simulation = simulate(chain, Schedule.store_all(chain))
    assert (simulation.peak_bytes, simulation.peak_op) == (118, "loss")
    assert simulation.makespan_s == 4.0
