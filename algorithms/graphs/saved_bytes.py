"""Selection by saved bytes, like PyTorch's activation memory budget: knapsack and minimum cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph
from schedsim.plans.plan import Plan, best_of, timed
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from ._forward_part import ForwardPart, forward_part
from ._minimum_cut import cheapest_saved

NUM_STEPS = 10_000
"""Number of steps that the range of saved bytes is divided into for the knapsack."""

MAX_TABLE = 100_000_000
"""Most entries of the knapsack's table; graphs of very many ops get fewer steps."""

NUM_FRACTIONS = 40


@timed()
def saved_bytes(
    graph: Graph,
    budget_bytes: int,
    *,
    fraction: float | None = None,
    num_fractions: int = NUM_FRACTIONS,
) -> Plan:
    """The fastest plan that fits, over settings of a knob that bounds the bytes saved.

    At fraction 1 the forward saves what the backward reads; at 0 it saves the least from which
    everything can be recomputed, usually the graph's inputs. In between, a 0/1 knapsack picks the
    ops that are not to run again: the most time within that fraction of the bytes between the two
    ends. A minimum cut then saves the least bytes from which the other ops make all that the
    backward reads. Each backward op, when it runs, first recomputes what it lacks; what has been
    recomputed stays until its last use.

    The knob bounds saved bytes. The peak, which `budget_bytes` bounds, may well rise where the knob
    falls, because more is recomputed at once: `saved_bytes_curve` shows it. So every setting is
    replayed, and only settings whose peak fits are taken.

    Parameters
    ----------
    fraction
        The only setting to use, from 0 to 1; by default all of ``0, 1/num_fractions, ..., 1``.

    Raises
    ------
    ValueError
        `fraction` is outside 0..1, or `num_fractions` is not positive.

    Notes
    -----
    O(n S) time and memory for the knapsack of n forward ops in S = `NUM_STEPS` steps of bytes,
    solved once for all settings; a minimum cut and a replay for each. Ops that take no time may
    always run again. PyTorch decides by kinds of op what is cheap, tries two further cuts before
    the knapsack, and works on a graph with fused ops; here only times and sizes count.

    References
    ----------
    PyTorch, ``torch._functorch.partitioners`` and ``config.activation_memory_budget``, version
    2.13; "Current and new activation checkpointing techniques in PyTorch", PyTorch blog, 2025.

    Examples
    --------
    >>> from schedsim import Graph, Op
    >>> forward = [Op(f"f{i}", time_s=1 + i % 2, reads=(f"x{i}",), writes={f"x{i + 1}": 1})
    ...            for i in range(8)]
    >>> backward = [Op(f"b{i}", "backward", 1, reads=(f"x{i}", f"d{i + 1}"), writes={f"d{i}": 1})
    ...             for i in range(7, -1, -1)]
    >>> loss = Op("loss", "loss", reads=("x8",), writes={"d8": 1})
    >>> graph = Graph("eight", (*forward, loss, *backward), {"x0": 1})
    >>> graph.store_all_s, saved_bytes(graph, 10).makespan_s, saved_bytes(graph, 7).makespan_s
    (20.0, 20.0, 24.0)
    """
    if num_fractions < 1:
        raise ValueError(f"num_fractions must be at least 1: {num_fractions}")
    if fraction is not None and not 0 <= fraction <= 1:
        raise ValueError(f"fraction must lie in 0..1: {fraction}")
    fractions = [k / num_fractions for k in range(num_fractions + 1)]
    chosen = fractions if fraction is None else [fraction]

    def schedules() -> Iterator[tuple[Mapping[str, Any], Schedule]]:
        for setting, _, runs in selections(forward_part(graph.arrays), chosen):
            yield {"fraction": setting}, Schedule(graph.op_names, runs)

    return best_of(graph, budget_bytes, schedules(), planner="saved_bytes")


@dataclass(frozen=True, slots=True)
class SavedBytesPoint:
    """One setting of the knob, the bytes that it saves, and its peak and time by replay."""

    fraction: float
    saved_bytes: int
    peak_bytes: int
    makespan_s: float


def saved_bytes_curve(
    graph: Graph, fractions: Iterable[float] | None = None
) -> list[SavedBytesPoint]:
    """Saved bytes, simulated peak and time at each of `fractions` (41 from 0 to 1 by default).

    Examples
    --------
    The peak falls with the bytes saved, and then rises again: a chain of which nothing is saved is
    recomputed whole, at once.

    >>> from schedsim import Graph, Op
    >>> forward = [Op(f"f{i}", time_s=1 + i % 3, reads=(f"x{i}",), writes={f"x{i + 1}": 1})
    ...            for i in range(12)]
    >>> backward = [Op(f"b{i}", "backward", 1, reads=(f"x{i}", f"d{i + 1}"), writes={f"d{i}": 1})
    ...             for i in range(11, -1, -1)]
    >>> loss = Op("loss", "loss", reads=("x12",), writes={"d12": 1})
    >>> graph = Graph("twelve", (*forward, loss, *backward), {"x0": 1})
    >>> [(p.saved_bytes, p.peak_bytes) for p in saved_bytes_curve(graph, (0, 0.3, 1))]
    [(1, 14), (4, 8), (13, 14)]
    """
    if fractions is None:
        fractions = [k / NUM_FRACTIONS for k in range(NUM_FRACTIONS + 1)]
    points = []
    for fraction, saved, runs in selections(forward_part(graph.arrays), fractions):
        simulation = simulate(graph, Schedule(graph.op_names, runs))
        points.append(
            SavedBytesPoint(fraction, saved, simulation.peak_bytes, simulation.makespan_s)
        )
    return points


def selections(
    part: ForwardPart, fractions: Iterable[float]
) -> Iterator[tuple[float, int, NDArray[np.int32]]]:
    """(fraction, saved bytes, op runs) at each of `fractions`."""
    arrays = part.arrays
    once = arrays.op_once[: part.num_ops]
    free = ~once & (part.op_time_s == 0)
    items = np.flatnonzero(~once & ~free)

    def saved_by(may_recompute: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], int]:
        saved = cheapest_saved(part, may_recompute)
        return saved, int(arrays.tensor_bytes[saved].sum())

    most, least = saved_by(free), saved_by(~once)
    knapsack = Knapsack(part.op_time_s[items], part.op_bytes[items], most[1] - least[1])
    for fraction in fractions:
        if fraction >= 1:
            saved, total = most
        elif fraction <= 0:
            saved, total = least
        else:
            may_recompute = ~once
            may_recompute[items[knapsack.chosen(fraction)]] = False
            saved, total = saved_by(may_recompute)
        yield fraction, total, part.runs_keeping(saved)


class Knapsack:
    """The items of most value within any fraction of a capacity; sizes are rounded up to steps."""

    def __init__(
        self, values: NDArray[np.float64], sizes_bytes: NDArray[np.int64], capacity_bytes: int
    ) -> None:
        num_steps = max(1, min(NUM_STEPS, MAX_TABLE // max(1, values.size)))
        self.num_steps = num_steps
        unit = max(1.0, capacity_bytes / num_steps) if capacity_bytes else 1.0
        self.num_usable = min(num_steps, int(capacity_bytes / unit))
        self.weights = np.ceil(sizes_bytes / unit).astype(np.int64)
        self.taken = np.zeros((values.size, num_steps + 1), dtype=np.bool_)
        best = np.zeros(num_steps + 1)
        for i, (value, weight) in enumerate(zip(values, self.weights, strict=True)):
            if weight > num_steps:
                continue
            other = best[: num_steps + 1 - weight] + value
            better = other > best[weight:]
            self.taken[i, weight:] = better
            best[weight:] = np.where(better, other, best[weight:])

    def chosen(self, fraction: float) -> NDArray[np.bool_]:
        """The items taken within `fraction` of the capacity, ``(num_items,)``."""
        left = int(fraction * self.num_usable)
        found = np.zeros(self.weights.size, dtype=np.bool_)
        for i in range(self.weights.size - 1, -1, -1):
            if self.taken[i, left]:
                found[i] = True
                left -= int(self.weights[i])
        return found
