"""A cluster drawn: memory of each pipeline rank by kind, and one rank's streams over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..simulation.categories import RUN_KINDS
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

_PHASES = {
    "forward": "#0072B2",
    "recomputed": "#56B4E9",
    "backward": "#E69F00",
    "message": "#999999",
    "copy to or from the host": "#009E73",
}
_GB = 1e9


def draw_cluster(found: ClusterPrediction) -> Figure:
    """Memory by rank and kind on the left, the timeline of one rank on the right.

    O(ranks * kinds + runs).
    """
    from matplotlib.figure import Figure

    page = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = page.subplots(1, 2, width_ratios=(1, 1.4))
    _draw_memory(left, found)
    _draw_streams(right, found)
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
    whole = f"memory of {device.name}"
    axes.axhline(device.memory_bytes / _GB, color="0.6", linewidth=0.8, linestyle="--", label=whole)
    axes.set(xlabel="pipeline rank", ylabel="GB at the peak", title=plain(found.model.name))
    axes.set_xticks(places)
    axes.legend(fontsize=6, frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.18))


def _draw_streams(axes: Axes, found: ClusterPrediction) -> None:
    run = found.time.timeline
    starts, lengths = run.start_s.tolist(), run.run_s.tolist()
    streams = run.run_streams.tolist()
    bars: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for k in range(run.num_runs):
        if lengths[k]:
            bars.setdefault((phase_of(run, k), streams[k]), []).append((starts[k], lengths[k]))
    for phase, colour in _PHASES.items():
        label = phase  # once in the legend
        for number in range(len(run.stream_names)):
            if (phase, number) in bars:
                area = (number - 0.4, 0.8)
                axes.broken_barh(bars[phase, number], area, color=colour, linewidth=0, label=label)
                label = ""
    axes.set_yticks(range(len(run.stream_names)), list(run.stream_names))
    axes.set(xlabel="seconds", title=plain(found.time.timeline_of))
    axes.invert_yaxis()
    axes.legend(fontsize=6, frameon=False, ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.18))


def phase_of(run: Simulation, k: int) -> str:
    """What run `k` does: a key of the colours."""
    stream = run.stream_names[run.run_streams[k]]
    if stream != "compute":
        return "message" if stream.startswith("link:") else "copy to or from the host"
    kind = RUN_KINDS[run.run_kinds[k]]
    if run.run_names[k].endswith(" again"):
        return "recomputed"
    return kind if kind in _PHASES else "backward"
