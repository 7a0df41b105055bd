"""The step of an optimizer, and the code behind it: what they take beside what is resident.

No schedule changes that. So it is measured in some of an optimizer's first steps, and said where it
takes more than the budget.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from schedsim.units import format_bytes

from ...measure.allocator import close_later
from ...measure.cuda import requested_bytes
from ...torch_private.graph_tasks import in_backward
from ..records.outside_code import OutsideMeter, outside_meter
from .held_state import HeldState, may_record
from .outside_gradients import OutsideGradients

_MOST_LOOKS, _MOST_STEPS = 2, 16
"""Steps of an optimizer that are measured, and steps in which it is tried."""
_FEW = 0.01
"""Share of a peak up to which bytes that are there for a moment are not what it is due to."""

_all: weakref.WeakSet[OptimizerSteps] = weakref.WeakSet()


class OptimizerPeak(NamedTuple):
    """What an optimizer's step takes.

    Attributes
    ----------
    name
        The class of the optimizer.
    remedy
        What takes less, in words.
    peak_bytes, passing_bytes
        The peak of its step, and how many bytes of that the step has released by its end.
    behind_bytes
        The peak of the code behind it, up to the next step of the loop; only on a CUDA device.
    """

    name: str
    remedy: str
    peak_bytes: int
    passing_bytes: int
    behind_bytes: int

    def lines_over(self, budget_bytes: int) -> Iterator[str]:
        """What is to be said of a step within this budget."""
        if self.peak_bytes > budget_bytes:
            yield (
                f"{self.name}.step takes about {format_bytes(self.peak_bytes)}, over the budget of "
                f"{format_bytes(budget_bytes)}, {format_bytes(self.passing_bytes)} of them for a "
                f"moment: no schedule changes that; {self.remedy}"
            )
        elif self.behind_bytes > budget_bytes:
            yield (
                f"the code behind {self.name}.step, as an average of the parameters, takes about "
                f"{format_bytes(self.behind_bytes)}, over the budget of "
                f"{format_bytes(budget_bytes)}: no schedule changes that; update one parameter at "
                "a time there, or hold copies on the host"
            )


class _Open(NamedTuple):
    """A step that is being measured; `is_record` where a profiler does it."""

    optimizer: torch.optim.Optimizer
    meter: OutsideMeter
    resident_bytes: int
    is_record: bool


class OptimizerSteps:
    """Measures the optimizers of one model.

    Parameters
    ----------
    held
        What the model holds.
    others
        Bytes besides, on a CPU: what the loop holds of inputs and outputs as an optimizer begins.
    is_trained
        Method that is called as a step of an optimizer of the model ends that had a gradient of it;
        it may call the model in its closure. It keeps its object no longer alive.

    Attributes
    ----------
    num_backwards
        Backwards of graphs of the model so far.
    """

    def __init__(
        self,
        held: HeldState,
        others: Callable[[], int],
        is_trained: Callable[[], None] | None = None,
    ) -> None:
        self._held, self._others = held, others
        self._is_trained = None if is_trained is None else weakref.WeakMethod(is_trained)
        self._num_looks: weakref.WeakKeyDictionary[torch.optim.Optimizer, int]
        self._num_looks = weakref.WeakKeyDictionary()
        self._num_steps: weakref.WeakKeyDictionary[torch.optim.Optimizer, int]
        self._num_steps = weakref.WeakKeyDictionary()
        self._own: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.num_backwards = 0
        self._outside = OutsideGradients(held, others)
        self._open: _Open | None = None
        self._peaks: dict[str, OptimizerPeak] = {}
        self._said: set[tuple[str, bool]] = set()
        _all.add(self)

    def begins(self, optimizer: torch.optim.Optimizer) -> None:
        """A step of `optimizer` begins: measure it, if it is this model's and not known yet."""
        self._outside.begins(optimizer, _backwards_for(optimizer))
        num_steps = self._num_steps.get(optimizer, 0)
        if num_steps >= _MOST_STEPS or self._num_looks.get(optimizer, 0) >= _MOST_LOOKS:
            return
        self._num_steps[optimizer] = num_steps + 1
        device = self._held.device_of(optimizer)
        if device is not None:
            self._own.add(optimizer)
        # A record that ends with the step could begin under no other one.
        if device is None or in_backward() or (device.type == "cpu" and not may_record()):
            return
        self.close()
        resident = self._resident_bytes(device)
        meter = outside_meter(device)
        if meter is None:
            return
        self._num_looks[optimizer] = self._num_looks.get(optimizer, 0) + 1
        meter.start()
        self._open = _Open(optimizer, meter, resident, device.type == "cpu")
        end = weakref.WeakMethod(self.close)
        close_later(lambda: (close := end()) is not None and close())

    @property
    def peak_bytes(self) -> int:
        """The most that a measured step has taken; 0 before any."""
        return max((peak.peak_bytes for peak in self._peaks.values()), default=0)

    def _resident_bytes(self, device: torch.device) -> int:
        if device.type == "cuda":
            return requested_bytes(device)
        # The first step makes the states: they are in its peak.
        return self._held.present_bytes + self._others()

    def ends(self, optimizer: torch.optim.Optimizer) -> None:
        """The step of `optimizer` is over: what comes is the code behind it.

        On a CPU nothing is measured there: a record stands in the way of the loop's own profiler.
        """
        if optimizer in self._own:
            self._own.discard(optimizer)
            tell = None if self._is_trained is None else self._is_trained()
            if tell is not None and self._held.has_gradient_for(optimizer):
                tell()
        if self._open is not None and self._open.optimizer is optimizer:
            self._open.meter.mark()
            if self._open.is_record:
                self.close()
        # On a CUDA device what comes is perhaps being measured already.
        self._outside.ends(optimizer, may_measure=self._open is None)

    def close(self) -> bool:
        """End the record of a step, where the loop goes on; whether there was one."""
        ended = self._outside.close()
        found, self._open = self._open, None
        if found is None:
            return ended
        stretches = found.meter.stop()
        if len(stretches) == 2:
            step, behind = stretches
            peak = found.resident_bytes + step.top
            self._learn(
                OptimizerPeak(
                    type(found.optimizer).__name__,
                    _remedy(found, peak, step.most - step.net_left),
                    peak,
                    step.most - step.net_left,
                    0 if found.is_record else found.resident_bytes + behind.top,
                )
            )
        return True

    def _learn(self, peak: OptimizerPeak) -> None:
        known = self._peaks.get(peak.name)
        if known is not None and known.peak_bytes > peak.peak_bytes:
            behind = max(known.behind_bytes, peak.behind_bytes)
            peak = OptimizerPeak(*known[:-1], behind_bytes=behind)
        self._peaks[peak.name] = peak

    def new_lines(self, budget_bytes: int) -> Iterator[str]:
        """What is to be said of steps within this budget, and was not said before."""
        for peak in self._peaks.values():
            key = (peak.name, peak.peak_bytes > budget_bytes)
            if key not in self._said:
                for line in peak.lines_over(budget_bytes):
                    self._said.add(key)
                    yield line
        yield from self._outside.new_lines(budget_bytes)

    def report(self) -> list[str]:
        """A line for each optimizer, for people."""
        return [
            f"  {peak.name}.step takes {format_bytes(peak.peak_bytes)}"
            + (f", what follows {format_bytes(peak.behind_bytes)}" if peak.behind_bytes else "")
            for peak in self._peaks.values()
        ]


def _backwards_for(optimizer: torch.optim.Optimizer) -> int:
    """Backwards of graphs so far, of any model of which `optimizer` trains something."""
    return sum(it.num_backwards for it in list(_all) if it._held.device_of(optimizer) is not None)


def close_all() -> bool:
    """End what is measured behind optimizers' steps, of any model; whether there was a record."""
    ended = [steps.close() for steps in list(_all)]
    return any(ended)


def _remedy(found: _Open, peak_bytes: int, passing_bytes: int) -> str:
    """What takes less than this optimizer's step does."""
    default = found.optimizer.defaults
    ways = []
    if passing_bytes > _FEW * peak_bytes and not default.get("fused"):
        if "fused" in default:
            ways.append("fused=True copies nothing")
        foreach = default.get("foreach", False)
        # On a CPU, torch takes one parameter at a time anyway, unless it is asked for.
        if foreach or (foreach is None and not found.is_record):
            ways.append("foreach=False copies one parameter at a time")
    return ", ".join(ways) or "an optimizer with smaller states, or a larger budget, would"


def _begin(optimizer: torch.optim.Optimizer, _arguments: Any, _keywords: Any) -> None:
    for steps in list(_all):
        steps.begins(optimizer)


def _end(optimizer: torch.optim.Optimizer, _arguments: Any, _keywords: Any) -> None:
    for steps in list(_all):
        steps.ends(optimizer)


# Behind those of `held_state`, which end the records of steps.
register_optimizer_step_pre_hook(_begin)
register_optimizer_step_post_hook(_end)
