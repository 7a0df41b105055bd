"""Findings: what a reader of an explanation should know first, by rules on simulated numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..dataflow.graph import Graph
from ..simulation.simulator import Simulation
from ..units import format_bytes_short, format_seconds

if TYPE_CHECKING:
    from .explanation import Change

# Shares of the peak above which a finding is worth a line.
LARGE = 0.3
DOMINANT = 0.5
NEGLIGIBLE = 0.001


@dataclass(frozen=True, slots=True)
class Finding:
    """A statement about a schedule, with the numbers it rests on.

    Attributes
    ----------
    code : str
        Stable name: ``static``, ``floor``, ``unchanged``, ``working-set``, ``wasted``, ``loss``
        or ``store-all``.
    text, remedy : str
        The statement, and what to do about it.
    """

    code: str
    text: str
    remedy: str


def find(
    graph: Graph,
    simulation: Simulation,
    store_all: Simulation,
    own_bytes: Sequence[int],
    recompute: Sequence[Change],
    keep: Sequence[Change],
) -> tuple[Finding, ...]:
    """The findings that hold, most important first; O(runs).

    Parameters
    ----------
    own_bytes
        Bytes that one run of each op needs by itself, without static bytes.
    recompute, keep
        Single changes as `schedsim.explain` finds them.
    """
    found = [
        _static(simulation),
        _unchanged(simulation, store_all),
        _floor(graph, simulation, own_bytes),
        _working_set(simulation),
        _loss(graph, simulation),
        _wasted(simulation, keep),
        _nothing_recomputed(simulation, recompute),
    ]
    return tuple(finding for finding in found if finding is not None)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}".replace("%", " %") if whole else "0 %"


def _static(simulation: Simulation) -> Finding | None:
    static, peak = simulation.static_bytes, simulation.peak_bytes
    if not static or static < LARGE * peak:
        return None
    return Finding(
        "static",
        f"{_share(static, peak)} of the peak ({format_bytes_short(static)}) is resident all the "
        "time: parameters, gradients, optimizer state; no schedule lowers it",
        "shard it (ZeRO, FSDP), use a smaller optimizer state, or freeze parameters",
    )


def _unchanged(simulation: Simulation, store_all: Simulation) -> Finding | None:
    """Recomputation does not lower the peak of store-all."""
    if not simulation.num_recomputed:
        return None
    saved = store_all.peak_bytes - simulation.peak_bytes
    if saved > 0.02 * store_all.peak_bytes:
        return None
    extra = format_seconds(simulation.makespan_s - store_all.makespan_s)
    how = "does not change" if saved == 0 else "hardly changes" if saved > 0 else "raises"
    return Finding(
        "unchanged",
        f"recomputing {simulation.num_recomputed} runs for {extra} {how} the peak: "
        f"{format_bytes_short(simulation.peak_bytes)} beside "
        f"{format_bytes_short(store_all.peak_bytes)} of store-all",
        f"the peak is at {simulation.peak_op}: evict what is alive there, not something else",
    )


def _floor(graph: Graph, simulation: Simulation, own_bytes: Sequence[int]) -> Finding | None:
    largest = max(range(graph.num_ops), key=own_bytes.__getitem__)
    own = own_bytes[largest]
    moving = simulation.peak_bytes - simulation.static_bytes
    if not own or own < DOMINANT * moving:
        return None
    return Finding(
        "floor",
        f"{graph.op_names[largest]} alone takes {format_bytes_short(own)} of the "
        f"{format_bytes_short(moving)} above the resident bytes: its inputs, outputs and workspace "
        "must be in memory together",
        "no schedule goes below: use smaller stages or ops, a smaller micro-batch, or a kernel "
        "that needs less",
    )


def _working_set(simulation: Simulation) -> Finding | None:
    parts = simulation.by_category()
    rebuilt = parts["recompute"]
    if not rebuilt or rebuilt < LARGE * (simulation.peak_bytes - simulation.static_bytes):
        return None
    return Finding(
        "working-set",
        f"{format_bytes_short(rebuilt)} of the peak is recomputed tensors: the "
        "segment being recomputed sets the peak, not what is kept between segments",
        "use more, shorter segments, or a planner that bounds the peak: auto",
    )


def _loss(graph: Graph, simulation: Simulation) -> Finding | None:
    """The peak is at the loss, or where its gradient is read."""
    op = graph.ops[graph.op_index(simulation.peak_op)]
    from_loss = {name for other in graph.ops if other.phase == "loss" for name in other.writes}
    if op.phase != "loss" and from_loss.isdisjoint(op.reads):
        return None
    return Finding(
        "loss",
        f"the peak is at the loss ({op.name}): its inputs and their gradients are alive together "
        "with all that the forward kept; the last segment is read at once, so that recomputing it "
        "saves nothing there",
        "keep the last segment, and evict earlier ones; if the logits are large, compute head "
        "and loss in chunks",
    )


def _wasted(simulation: Simulation, keep: Sequence[Change]) -> Finding | None:
    """Repeats that cost time without lowering the peak."""
    allowed = NEGLIGIBLE * simulation.peak_bytes
    free = [c for c in keep if c.peak_change_bytes <= allowed and c.time_change_s < 0]
    if not free:
        return None
    best = min(free, key=lambda change: change.time_change_s)
    many = f"{len(free)} repeats lower" if len(free) > 1 else "one repeat lowers"
    return Finding(
        "wasted",
        f"{many} the peak by less than 0.1 % each; not repeating {best.op_name} alone saves "
        f"{format_seconds(-best.time_change_s)} for "
        f"{format_bytes_short(max(0, best.peak_change_bytes))}",
        "tiny layers and the segment that is read next are not worth recomputing: keep them",
    )


def _nothing_recomputed(simulation: Simulation, recompute: Sequence[Change]) -> Finding | None:
    if simulation.num_recomputed:
        return None
    if not recompute:
        return Finding(
            "store-all",
            "nothing is recomputed, and no single recomputation lowers the peak",
            "several together may: ask a planner, schedsim plan",
        )
    best = recompute[0]
    most = min(recompute, key=lambda change: change.peak_change_bytes)
    return Finding(
        "store-all",
        f"nothing is recomputed; repeating {best.op_name} for "
        f"{format_seconds(best.time_change_s)} would lower the peak by "
        f"{format_bytes_short(-best.peak_change_bytes)}, and one change can lower it by up to "
        f"{format_bytes_short(-most.peak_change_bytes)} ({most.op_name})",
        "schedsim plan chooses them together",
    )
