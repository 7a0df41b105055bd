"""The picture of a pipeline: what it shows, not its pixels."""

from __future__ import annotations

import itertools

import pytest

from schedsim.figures.plot import KINDS
from schedsim.figures.plot_pipeline import COLOURS, draw_pipeline, pipeline_boxes
from schedsim.pipelines import (
    Collectives,
    layer_inputs,
    make_order,
    make_pipeline,
    run_pipeline,
    stage_input,
)
from schedsim.plans.links import Link
from schedsim.workloads.synthetic import uniform


def run_of(order: str, **options):
    chunks = options.pop("num_chunks", 1)
    pipeline = make_pipeline(uniform(8), 2, 4, num_chunks=chunks, **options)
    plans = [stage_input(4 // chunks)] * (2 * chunks)
    return run_pipeline(pipeline, make_order(order, 2, 4, chunks), plans)


@pytest.mark.parametrize(
    ("order", "options"),
    [
        ("gpipe", {}),
        ("1f1b", {"link": Link(1e9, 1e-4)}),
        ("interleaved", {"num_chunks": 2}),
        ("zero-bubble", {"split_backward": True}),
        ("1f1b", {"collectives": [Collectives(1e-4, 1e-4)] * 8}),
    ],
)
def test_boxes_are_the_busy_time(order, options):
    """Boxes of a device never overlap, and together last as long as it computes."""
    run = run_of(order, **options)
    boxes = pipeline_boxes(run)
    for use in run.devices:
        mine = [
            box
            for box in boxes
            if box.row == use.device and box.kind not in ("message", "collective")
        ]
        assert sum(box.end_s - box.start_s for box in mine) == pytest.approx(use.busy_s)
        again = [box for box in mine if box.kind == "recompute"]
        seconds = sum(box.end_s - box.start_s for box in again)
        assert seconds == pytest.approx(use.recompute_s)
        for one, other in itertools.pairwise(mine):
            assert one.end_s <= other.start_s + 1e-12


def test_one_box_per_stage_and_micro_batch():
    """Layers that follow one another are one box; a replay between them parts it."""
    run = run_of("gpipe")
    kinds = [(box.kind, box.micro) for box in pipeline_boxes(run) if box.row == 0]
    assert kinds[:4] == [("forward", j) for j in range(4)]
    assert sorted(kinds[4:]) == sorted(
        [("recompute", j) for j in range(4)] + [("backward", j) for j in range(4)]
    )
    pipeline = make_pipeline(uniform(4), 2, 1)
    run = run_pipeline(pipeline, make_order("1f1b", 2, 1), [layer_inputs(2)] * 2)
    last = [box.kind for box in pipeline_boxes(run) if box.row == 1]
    assert last == ["forward", "recompute", "backward", "recompute", "backward"]


def test_the_picture():
    """Rows are named, micro-batches numbered from 1, kinds in the legend."""
    figure = draw_pipeline(run_of("1f1b"))
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["device 0", "device 1"]
    assert {text.get_text() for text in axes.texts} <= {"1", "2", "3", "4"}
    assert "4" in {text.get_text() for text in axes.texts}
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["forward", "recompute", "backward"]
    assert "bubble" in axes.get_title()


def test_kinds_have_one_colour_in_all_figures():
    """What runs in a pipeline is coloured as it is on a device alone."""
    assert {name: COLOURS[name] for name in ("forward", "backward")} == {
        name: KINDS[name] for name in ("forward", "backward")
    }
    assert COLOURS["recompute"] == KINDS["recomputed"]
    assert len(set(COLOURS.values())) == len(COLOURS)
