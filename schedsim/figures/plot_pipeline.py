"""The usual picture of a pipeline: a row per device, a numbered box per micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dataflow.streams import device_of, is_compute
from .plot import KINDS, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..pipelines import PipelineRun

COLOURS = {
    "forward": KINDS["forward"],
    "recompute": KINDS["recomputed"],
    "backward": KINDS["backward"],
    "weights": "#F0E442",
    "message": "#999999",
    "collective": "#CC79A7",
}
"""Colours by kind of run (Okabe and Ito); in a split backward, ``backward`` is the input's part."""

# Boxes narrower than this share of the picture get no number; with more boxes than this, boxes get
# no edges.
_LEAST_NUMBERED, _MOST_EDGED = 0.012, 3000


@dataclass(frozen=True, slots=True)
class Box:
    """Consecutive runs of one kind, by one stage for one micro-batch.

    Attributes
    ----------
    row
        The device; for messages and collectives, the sender.
    kind
        A key of `COLOURS`.
    stage, micro
        The stage and the micro-batch of the runs.
    start_s, end_s
        In seconds from the start of the step.
    """

    row: int
    kind: str
    stage: int
    micro: int
    start_s: float
    end_s: float


def pipeline_boxes(run: PipelineRun) -> list[Box]:
    """The boxes of each device over time, consecutive runs joined; messages included.

    O(runs).

    Examples
    --------
    >>> from schedsim.pipelines import keep_all, make_order, make_pipeline, run_pipeline
    >>> from schedsim.workloads.synthetic import uniform
    >>> run = run_pipeline(make_pipeline(uniform(4), 2, 1), make_order("1f1b", 2, 1),
    ...                    [keep_all(2)] * 2)
    >>> [(box.row, box.kind, box.micro) for box in pipeline_boxes(run)]
    [(0, 'forward', 0), (1, 'forward', 0), (1, 'backward', 0), (0, 'backward', 0)]
    """
    pipeline, simulation = run.pipeline, run.simulation
    graph = pipeline.graph
    width = graph.num_ops // pipeline.num_micro_batches
    runs = simulation.schedule.bind(graph)
    again = np.ones(runs.size, dtype=bool)
    again[np.unique(runs, return_index=True)[1]] = False
    stage_of = {i: v for v in range(pipeline.num_stages) for i in pipeline.stage_layers(v)}
    kinds = [_kind(op.name, op.stream) for op in graph.ops[:width]]
    stages = [_stage(op.name, op.stream, stage_of) for op in graph.ops[:width]]
    rows = [_row(op.stream) for op in graph.ops[:width]]
    open_: dict[int, Box] = {}
    found: list[Box] = []
    starts, ends = simulation.start_s.tolist(), simulation.end_s.tolist()
    for run_, repeat, start, end in zip(runs.tolist(), again.tolist(), starts, ends, strict=True):
        micro, k = divmod(run_, width)
        if end <= start:
            continue
        kind = "recompute" if repeat and kinds[k] == "forward" else kinds[k]
        box = Box(rows[k], kind, stages[k], micro, start, end)
        if kind in ("message", "collective"):
            found.append(box)
            continue
        last = open_.get(rows[k])
        same = last is not None and (last.kind, last.stage, last.micro) == (kind, stages[k], micro)
        if last is not None and same and start - last.end_s <= 1e-9 * end:
            open_[rows[k]] = Box(rows[k], kind, stages[k], micro, last.start_s, end)
            continue
        if last is not None:
            found.append(last)
        open_[rows[k]] = box
    found += open_.values()
    return sorted(found, key=lambda box: (box.start_s, box.row))


def _kind(name: str, stream: str) -> str:
    if not is_compute(stream):
        return "message" if name.startswith("send:") else "collective"
    return {"F": "forward", "W": "weights"}.get(name[0], "backward")


def _stage(name: str, stream: str, stage_of: dict[int, int]) -> int:
    """The stage that a run works for; the last stage for the loss, -1 for messages."""
    label = name.partition(".")[0]
    if not is_compute(stream):
        return -1
    return stage_of[int(label[1:])] if label[1:].isdigit() else max(stage_of.values())


def _row(stream: str) -> int:
    if is_compute(stream):
        return int(device_of(stream).rpartition(":")[2] or 0)
    return int(stream.removeprefix("link:").partition("-")[0])


def draw_pipeline(run: PipelineRun, *, axes: Axes | None = None) -> Figure:
    """A row per device, a box per stage and micro-batch, numbered by micro-batch.

    Forwards are blue, recomputed forwards orange, backwards green; gradients of weights, where they
    are ops of their own, are light blue. Later chunks of a device are darker. White space is the
    bubble. The thin boxes below each device are the messages that it sends, and its collectives.
    """
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Patch, Rectangle

    pipeline = run.pipeline
    num = pipeline.num_devices
    boxes = pipeline_boxes(run)
    figure, axes = _canvas(axes, num)
    factor, unit = _time_unit(run.makespan_s)
    edge = "white" if len(boxes) < _MOST_EDGED else "none"
    patches: dict[bool, list[Any]] = {False: [], True: []}
    colours: dict[bool, list[Any]] = {False: [], True: []}
    for box in boxes:
        thin = box.kind in ("message", "collective")
        low, high = (0.36, 0.08) if thin else (-0.4, 0.72)
        width = (box.end_s - box.start_s) / factor
        patches[thin].append(Rectangle((box.start_s / factor, box.row + low), width, high))
        colours[thin].append(_shade(COLOURS[box.kind], box.stage // num if box.stage > 0 else 0))
        if not thin and width > _LEAST_NUMBERED * run.makespan_s / factor:
            middle = (box.start_s + box.end_s) / 2 / factor
            axes.text(
                middle,
                box.row - 0.04,
                str(box.micro + 1),
                ha="center",
                va="center",
                fontsize=7,
                color="white" if box.kind != "weights" else "black",
                clip_on=True,
            )
    for thin, shapes in patches.items():
        kind = "face" if thin else edge
        axes.add_collection(
            PatchCollection(
                shapes, facecolors=colours[thin], edgecolors=kind, linewidths=0.2 if thin else 0.4
            )
        )
    axes.set(
        xlim=(0, run.makespan_s / factor or 1),
        ylim=(num - 0.4, -0.6),
        xlabel=f"time [{unit}]",
        yticks=range(num),
        yticklabels=[f"device {k}" for k in range(num)],
    )
    axes.set_title(
        f"{plain(pipeline.name)}: {pipeline.num_micro_batches} micro-batches over {num} devices, "
        f"bubble {run.bubble:.1%}",
        fontsize=11,
    )
    axes.tick_params(left=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    present = {box.kind for box in boxes}
    handles: list[Any] = [
        Patch(color=colour, label=name) for name, colour in COLOURS.items() if name in present
    ]
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8
    )
    return figure


def _canvas(axes: Axes | None, num_rows: int) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    if axes is not None:
        owner = axes.get_figure(root=True)
        assert isinstance(owner, Figure)
        return owner, axes
    figure = Figure(figsize=(11.0, min(1.2 + 0.42 * num_rows, 16.0)))
    return figure, figure.subplots()


def _time_unit(longest_s: float) -> tuple[float, str]:
    for factor, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if longest_s >= factor:
            return factor, name
    return 1e-9, "ns"


def _shade(colour: str, chunk: int) -> tuple[float, ...]:
    """`colour`, darker for each chunk after the first."""
    from matplotlib.colors import to_rgb

    return tuple(part * 0.72 ** min(chunk, 4) for part in to_rgb(colour))
