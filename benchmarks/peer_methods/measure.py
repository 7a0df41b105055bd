"""One meter for everybody: peak, operations, results and times of a step."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from schedsim.validation.measure import (
    AllocatorMeter,
    count_flops,
    storage_bytes,
    time_interleaved,
)
from schedsim.validation.measure.timing import ratio
from torch import Tensor, nn

from schedsim import rematerialize
from schedsim.errors import InfeasibleBudgetError

from .eager import Step, plain
from .subjects import Subject

_TRIES = 3
"""Plans for one peak: the budget is lowered by what the measured peak was above it."""


class Bench:
    """Measures steps of one subject, all by the same means.

    Attributes
    ----------
    resident_bytes
        Parameters, buffers and inputs: what is there before any step.
    """

    def __init__(self, subject: Subject, *, rounds: int, time_limit_s: float) -> None:
        self.subject, self.rounds, self.time_limit_s = subject, rounds, time_limit_s
        loss = subject.loss
        held: list[Any] = [*subject.model.parameters(), *subject.model.buffers(), subject.inputs]
        if isinstance(loss, nn.Module):
            held += [*loss.parameters(), *loss.buffers()]
        self.resident_bytes = storage_bytes(held)
        self.plain = plain(subject)
        self.plain_results = self.results(self.plain)
        self.plain_flops = self.flops(self.plain)
        self._ours: dict[str, Any] = {}

    def clear(self) -> None:
        """Drop the gradients, and start from the first random number."""
        for parameter in self.subject.model.parameters():
            parameter.grad = None
        torch.manual_seed(0)

    def once(self, step: Step) -> None:
        """Forward and backward."""
        step().backward()  # type: ignore[no-untyped-call]

    def peak_bytes(self, step: Step) -> int:
        """Peak by the allocator's own record, with kernels' scratch and all resident bytes."""
        self.clear()
        self.once(step)  # warm: what is allocated once for all
        self.clear()
        [reading] = AllocatorMeter().read(lambda: self.once(step))
        self.clear()
        return self.resident_bytes + reading.peak_bytes

    def flops(self, step: Step) -> int:
        """Operations of matrix products, convolutions and attention."""
        self.clear()
        own: Callable[[], int] | None = getattr(step, "count_flops", None)
        found = own() if own is not None else count_flops(lambda: self.once(step))
        self.clear()
        return found

    def results(self, step: Step) -> list[Tensor | None]:
        """The loss and all gradients."""
        self.clear()
        loss = step()
        loss.backward()  # type: ignore[no-untyped-call]
        found = [loss.detach(), *(p.grad for p in self.subject.model.parameters())]
        self.clear()
        return found

    def difference(self, step: Step) -> str:
        """How the gradients differ from the plain model's, in words."""
        worst, lost = 0.0, 0
        for mine, its in zip(self.results(step), self.plain_results, strict=True):
            if mine is None or its is None:
                lost += mine is not its
            elif not torch.equal(mine, its):
                scale = float(its.abs().max()) or 1.0
                worst = max(worst, float((mine - its).abs().max()) / scale)
        if lost:
            return f"{lost} gradients lost"
        return f"relative {worst:.0e}" if worst else "bitwise"

    def times(self, steps: dict[str, Step]) -> dict[str, list[float]]:
        """Seconds of processor time per round; every round runs each step once.

        On one thread that is the step's time on a machine with nothing else to do.
        """
        functions = {name: (lambda step=step: self.once(step)) for name, step in steps.items()}
        return time_interleaved(
            functions, rounds=self.rounds, before=self.clear, clock=time.process_time
        )

    def measure(self, step: Step) -> dict[str, Any]:
        """Everything about a step but its time."""
        flops = self.flops(step)
        return {
            "peak_bytes": self.peak_bytes(step),
            "flops": flops,
            "extra_flops": flops / self.plain_flops - 1,
            "gradients": self.difference(step),
        }

    def ours(
        self, budget_bytes: int, costs: str = "measured"
    ) -> tuple[dict[str, Any], Step | None]:
        """The rematerialized model whose measured peak is at most `budget_bytes`."""
        # The allocator sees a little more than the prediction.
        aim = budget_bytes - (budget_bytes - self.resident_bytes) // 1000
        row, step = {}, None
        for _ in range(_TRIES):
            try:
                planned = self.planned(aim, costs)
            except InfeasibleBudgetError as error:
                return {"status": "infeasible", "reason": str(error).partition("\n")[0]}, None
            plan = planned.plan
            step = partial(planned.module, *self.subject.inputs)
            row = {
                "status": plan.status,
                "budget_bytes": aim,
                "predicted_peak_bytes": plan.peak_bytes,
                "predicted_overhead": plan.overhead,
                "gap": plan.gap,
                "planning_s": plan.planning_s,
                "peak_bytes": self.peak_bytes(step),
            }
            over = row["peak_bytes"] - budget_bytes
            if over <= 0:
                break
            aim -= over + 4096
        assert step is not None
        flops = self.flops(step)
        row |= {"flops": flops, "extra_flops": flops / self.plain_flops - 1}
        if costs == "measured":
            row["gradients"] = self.difference(step)
        return row, step

    def planned(self, budget_bytes: int, costs: str = "measured") -> Any:
        """The planned step within `budget_bytes`, and its module."""
        subject = self.subject
        if costs not in self._ours:
            # Captured once; every budget is another plan.
            self._ours[costs] = rematerialize(
                subject.model,
                subject.inputs,
                "100%",
                subject.loss,
                costs=costs,
                time_limit_s=self.time_limit_s,
            )
        module = self._ours[costs]
        module.replan(budget_bytes)
        return module.prepare(*subject.inputs)


def compared(times: dict[str, list[float]], name: str, base: str) -> dict[str, float]:
    """`name` over `base`, round by round: the median and the quartiles."""
    found = ratio(times[name], times[base])
    return {"median": found.median_s, "low": found.low_s, "high": found.high_s}


def machine_load() -> float:
    """Processes that wait for a core, by the last minute: above the cores, times are noisy."""
    return os.getloadavg()[0]
