"""A lower bound on the step time of one partition: every action of the order in a linear program.

For each stage v and micro-batch j, ``held[v, j]`` are the bytes that it keeps from its forward to
its backward, and ``more[v, j]`` is what its backward takes beyond that of store-all. Any persistent
recomputation takes at least the lower convex envelope of time over held bytes. Every action ends no
sooner than its device and its message allow; what a backward recomputes may come before its
message. After each forward, what is in flight on the device fits into its memory; at the start of a
backward, beside the gradients of the stage's last layer. So the least end of the last action bounds
the step. Single stages (``pipeline_bounds.py``) do not see that several of them recompute in turn.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schedsim.dataflow.chain import Stage
from schedsim.pipelines import Order, Pipeline
from schedsim.plans.effort import Effort

from ..graphs._milp import MOST_OF_SIMPLEX, Ints, Milp
from ._device_choices import lower_envelope
from ._makespan import weight_times
from .stage_frontier import StageFrontiers

# The step of store-all takes so many units of time, beside which the solver's tolerance is small;
# what the program says is lowered by that share. Work that the solver may take at most.
_UNITS, _SAFE, _WORK = 1e4, 1e-6, 20.0

# Limits on bytes are wider by more than the rounding of their sums.
_WIDER = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class _Trade:
    """What a micro-batch of a stage takes more, at least: ``more >= base - price * held``."""

    least_bytes: float
    lines: list[tuple[float, float]]  # (base in seconds, price in seconds a byte)


def turns_bound(
    fronts: StageFrontiers, pipeline: Pipeline, order: Order, budget_bytes: int
) -> float:
    """A bound over persistent recomputation in `order`, in seconds; 0 where it says nothing.

    It says nothing about several stages a device, collectives, and orders of so many actions that
    the program has more than `MOST_OF_SIMPLEX` non-zeros. It is infinite where nothing fits.

    Examples
    --------
    >>> from schedsim.pipelines import make_order, make_pipeline
    >>> from schedsim.workloads.synthetic import uniform
    >>> pipeline, order = make_pipeline(uniform(8), 4, 8), make_order("1f1b", 4, 8)
    >>> fronts = StageFrontiers(pipeline.chain, 40_000_000)
    >>> round(turns_bound(fronts, pipeline, order, 40_000_000), 5)  # 0.066 by single stages
    0.06775
    """
    if pipeline.num_chunks > 1 or pipeline.collectives or likely_nonzeros(order) > MOST_OF_SIMPLEX:
        return 0.0
    program = _Turns(fronts, pipeline, budget_bytes)
    for device, actions in enumerate(order):
        if not program.add(device, actions):
            return math.inf
    if program.milp.num_nonzeros > MOST_OF_SIMPLEX:
        return 0.0
    answer = program.milp.solve(Effort(_WORK), integral=False)
    if answer.infeasible:
        return math.inf
    return 0.0 if answer.bound is None else answer.bound * program.unit_s * (1 - _SAFE)


def likely_nonzeros(order: Order) -> int:
    """About the non-zeros of the program: a few an action, and one for each that is in flight.

    So the program of a very long order is not even begun.
    """
    found = 0
    for actions in order:
        flying = 0
        for kind, _, _ in actions:
            flying += kind == "F"
            found += 6 + flying
            flying -= kind == "B"
    return found


class _Turns:
    """The program, a device after the other."""

    def __init__(self, fronts: StageFrontiers, pipeline: Pipeline, budget_bytes: int) -> None:
        self.fronts, self.pipeline, self.budget_bytes = fronts, pipeline, budget_bytes
        self.work = [pipeline.stage_work_s(v) for v in range(pipeline.num_stages)]
        self.weights = weight_times(pipeline).tolist()
        self.sizes = pipeline.chain.activation_bytes().tolist()
        per_micro = math.fsum(sum(pair) for pair in self.work) / pipeline.num_devices
        self.unit_s = per_micro * pipeline.num_micro_batches / _UNITS or 1.0
        self.byte_unit = float(max(1, budget_bytes))
        self.milp = Milp()
        self.end = int(self.milp.variables(1, ub=np.inf, cost=1.0)[0])
        shape = (pipeline.num_stages, pipeline.num_micro_batches)
        self.ends = {
            kind: self.milp.variables(math.prod(shape), ub=np.inf).reshape(shape) for kind in "FBW"
        }

    def add(self, device: int, actions: Sequence[tuple[str, int, int]]) -> bool:
        """The actions of `device`, which has one stage; whether its stage has any plan."""
        milp, pipeline, stage = self.milp, self.pipeline, device
        lo, hi = pipeline.cuts[stage], pipeline.cuts[stage + 1]
        trade = stage_trade(self.fronts, lo, hi)
        if trade is None:
            return False
        num = pipeline.num_micro_batches
        held = milp.variables(num, lb=trade.least_bytes / self.byte_unit, ub=np.inf)
        more = milp.variables(num, ub=np.inf)
        for base_s, price in trade.lines:
            per_unit = price * self.byte_unit / self.unit_s
            milp.rows(num, (more, 1.0), (held, per_unit), lb=base_s / self.unit_s, ub=np.inf)
        last = stage == pipeline.num_stages - 1
        forward_s, backward_s = self.work[stage]
        backward_s += (pipeline.chain.loss_s if last else 0.0) - self.weights[stage]
        before = -1
        flying: set[int] = set()
        for kind, _, micro in actions:
            now = self._end(kind, stage, micro)
            took = {"F": forward_s, "B": backward_s, "W": self.weights[stage]}[kind] / self.unit_s
            own = more[[micro]] if kind == "B" else np.full(1, -1)
            self._after(now, before, own, took)
            if kind == "F" and stage > 0:
                self._after(now, self._end("F", stage - 1, micro), np.full(1, -1), took, lo)
            elif kind == "B" and not last:
                late = own if pipeline.waits_for_gradient else np.full(1, -1)
                self._after(now, self._end("B", stage + 1, micro), late, took, hi)
            if kind == "F":
                flying.add(micro)
            if kind != "W":
                beside = self._beside(lo, hi) if kind == "B" else 0
                self._fit(stage, held[sorted(flying)], beside)
            if kind == "B":
                flying.discard(micro)
            before = now
        if before >= 0:
            milp.rows(1, (np.full(1, self.end), 1.0), (np.full(1, before), -1.0), lb=0.0, ub=np.inf)
        return True

    def _end(self, kind: str, stage: int, micro: int) -> int:
        return int(self.ends[kind][stage, micro])

    def _after(
        self, now: int, before: int, more: Ints, took: float, cut: int | None = None
    ) -> None:
        """`now` ends so long after `before`, of the same device or with a message at `cut`."""
        message_s = 0.0 if cut is None else self.pipeline.message_s(self.sizes[cut])
        least = took + message_s / self.unit_s
        ends = np.array([now]), np.array([before])
        self.milp.rows(1, (ends[0], 1.0), (ends[1], -1.0), (more, -1.0), lb=least, ub=np.inf)

    def _beside(self, lo: int, hi: int) -> int:
        """Bytes at the start of a backward beside all that is held: gradients and workspace."""
        if self.pipeline.split_backward:
            return 0
        layer = self.pipeline.chain.stages[hi - 1]
        gradient = self.sizes[hi - 1] if hi - 1 > 0 else 0
        return layer.output_bytes + gradient + layer.backward_workspace_bytes

    def _fit(self, stage: int, held: Ints, beside: int) -> None:
        room = self.budget_bytes - self.pipeline.device_static_bytes[stage] - beside
        room -= held.size * self.sizes[self.pipeline.cuts[stage]]
        most = room / self.byte_unit
        most += abs(most) * (_WIDER - 1)
        self.milp.placed(1, (0, held, 1.0), lb=-np.inf, ub=most)


def stage_trade(fronts: StageFrontiers, lo: int, hi: int) -> _Trade | None:
    """What layers ``lo..hi-1`` take more the less they hold; ``None`` where no plan fits."""
    front = fronts.front(lo, hi)
    layers = fronts.chain.stages[lo:hi]
    plain = math.fsum([y.forward_s for y in layers] + [y.backward_s for y in layers])
    lines = dropped_lines(layers, frees_output=fronts.frees_outputs)
    if not front.complete:
        return _Trade(0.0, lines)
    hull = lower_envelope(front)
    if not hull:
        return None
    for (low, slow), (high, fast) in itertools.pairwise(hull):
        price = (slow - fast) / (high - low)
        lines.append((slow - plain + price * low, price))
    lines.append((hull[-1][1] - plain, 0.0))
    return _Trade(hull[0][0], lines)


def dropped_lines(layers: Sequence[Stage], *, frees_output: bool) -> list[tuple[float, float]]:
    """The pieces of `dropped_s`: each a time where nothing is held, and what a byte saves."""
    sizes = [layer.saved_bytes for layer in layers]
    if frees_output:
        sizes[-1] -= layers[-1].output_bytes
    total = sum(sizes)
    prices = sorted(
        (layer.forward_s / size, size)
        for layer, size in zip(layers, sizes, strict=True)
        if size > 0
    )
    found: list[tuple[float, float]] = []
    dropped, took = 0, 0.0
    for price, size in prices:
        # The first `dropped` bytes less than all take `took`; the next ones have this price.
        if not found or price > found[-1][1]:
            found.append((took + price * (total - dropped), price))
        dropped, took = dropped + size, took + price * size
    return found
