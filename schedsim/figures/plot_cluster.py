"""A cluster drawn: memory of each pipeline rank by kind, and one rank's streams over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .plot import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..clusters import ClusterPrediction
    from ..simulation.result import Simulation

KIND_COLOURS = {
    "parameters": "#0072B2",
    "gradients": "#56B4E9",
    "optimizer state": "#999999",
    "gathered parameters": "#009E73",
    "gradients, not yet sharded": "#CC79A7",
    "communication buffers": "#F0E442",
    "activations": "#E69F00",
    "gradients of activations": "#D55E00",
    "logits and loss": "#000000",
    "workspaces": "#BBBBBB",
}
"""Colours of kinds of memory (Okabe and Ito), in the order in which they are stacked."""

_PHASES = {"forward": "#0072B2", "backward": "#E69F00", "message": "#999999"}
_GB = 1e9


def draw_cluster(found: ClusterPrediction) -> Figure:
    """Memory by rank and kind on the left, the timeline of one rank on the right.

    O(ranks * kinds + runs).
    """
    from matplotlib.figure import Figure

    page = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = page.subplots(1, 2, width_ratios=(1, 1.4))
    _draw_memory(left, found)
    _draw_streams(right, found.time.timeline)
    return page


def stacked_kinds(found: ClusterPrediction) -> dict[str, list[float]]:
    """Kind -> GB on each rank at its peak; kinds that no rank has are left out."""
    seen = {kind for rank in found.ranks for kind in rank.kinds}
    order = [*KIND_COLOURS, *sorted(seen - set(KIND_COLOURS))]
    return {
        kind: [rank.kinds.get(kind, 0) / _GB for rank in found.ranks]
        for kind in order
        if kind in seen
    }


def _draw_memory(axes: Axes, found: ClusterPrediction) -> None:
    places = [rank.rank for rank in found.ranks]
    below = [0.0] * len(places)
    for kind, sizes in stacked_kinds(found).items():
        axes.bar(places, sizes, 0.8, below, label=kind, color=KIND_COLOURS.get(kind, "#DDDDDD"))
        below = [a + b for a, b in zip(below, sizes, strict=True)]
    reserved = [rank.reserved_bytes / _GB for rank in found.ranks]
    axes.plot(places, reserved, "_", color="black", markersize=14, label="reserved")
    device = found.fabric.device
    axes.axhline(device.memory_bytes / _GB, color="0.6", linewidth=0.8, linestyle="--")
    axes.set(xlabel="pipeline rank", ylabel="GB at the peak", title=plain(found.model.name))
    axes.set_xticks(places)
    axes.legend(fontsize=6, frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.18))


def _draw_streams(axes: Axes, run: Simulation) -> None:
    starts, lengths = run.start_s.tolist(), run.run_s.tolist()
    streams, kinds = run.run_streams.tolist(), run.run_kinds.tolist()
    for number, stream in enumerate(run.stream_names):
        for phase, colour in _PHASES.items():
            bars = [
                (starts[k], lengths[k])
                for k in range(run.num_runs)
                if streams[k] == number and _phase(stream, kinds[k]) == phase and lengths[k]
            ]
            if bars:
                axes.broken_barh(bars, (number - 0.4, 0.8), color=colour, linewidth=0)
    axes.set_yticks(range(len(run.stream_names)), list(run.stream_names))
    axes.set(xlabel="seconds", title="one rank")
    axes.invert_yaxis()


def _phase(stream: str, kind: int) -> str:
    if stream != "compute":
        return "message"
    return "forward" if kind < 2 else "backward"
