"""The step of an optimizer, and the code from there to the next forward: what they take.

As of an average of the parameters, or of a teacher in front of the student. No schedule changes
that. So it is measured in some of an optimizer's steps, and said where it takes more than the
budget.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
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
from ...torch_private.storage_refs import num_holders, share_of
from ..parts.output_uses import Result, bytes_of
from ..records.outside_code import OutsideMeter, outside_meter
from .held_state import HeldState, changes_parameters, is_any_stepping, may_record
from .outside_gradients import OutsideGradients

_MOST_LOOKS, _MOST_STEPS = 2, 16
"""Times that a step and the code behind it are measured, and first steps in which it is tried.

Then those are tried whose numbers are powers of two: a loop may begin with a teacher later.
"""
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
        The peak of the code behind it, up to the next step of the loop.
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
                f"the code between {self.name}.step and the next forward, as the forward of a "
                "teacher or an average of the parameters, takes about "
                f"{format_bytes(self.behind_bytes)}, over the budget of "
                f"{format_bytes(budget_bytes)}: no schedule changes that; smaller batches there, "
                "one parameter at a time, or copies on the host take less"
            )


class _Open(NamedTuple):
    """A step that is being measured.

    Attributes
    ----------
    is_record
        Whether a profiler does it, which is told nothing of what was there before and goes.
    others
        What the loop holds of inputs and outputs as it begins.
    gradients
        References to the gradients, which tell the meter as each of them goes.
    """

    optimizer: torch.optim.Optimizer
    meter: OutsideMeter
    resident_bytes: int
    is_record: bool
    others: tuple[Result, ...]
    gradients: tuple[weakref.ref[torch.Tensor], ...]


class _Looks:
    """Steps of one optimizer, and how many of them were measured, and how much code behind them.

    Examples
    --------
    >>> looks = _Looks()
    >>> looks.num_steps = looks.num_behind = 2
    >>> [k for k in range(1, 100) if looks.begins(goes_on=True)]
    [16, 32, 64]
    """

    def __init__(self) -> None:
        self.number = self.num_steps = self.num_behind = 0

    def begins(self, *, goes_on: bool) -> bool:
        """A step begins; whether it is to be measured, where that `goes_on` behind it or not."""
        self.number += 1
        if self.number >= _MOST_STEPS:
            return goes_on and not self.number & (self.number - 1)
        return self.num_steps < _MOST_LOOKS or (goes_on and self.num_behind < _MOST_LOOKS)


class OptimizerSteps:
    """Measures the optimizers of one model.

    Parameters
    ----------
    held
        What the model holds.
    others
        What the loop holds besides, on a CPU, of inputs and outputs as an optimizer begins.
    is_trained, wants_record
        Methods, which keep their objects no longer alive. The first is called as a step of an
        optimizer of the model ends that had a gradient of it; it may call the model in its closure.
        The second says whether the next step of the loop is to be measured, which no record may
        run into.

    Attributes
    ----------
    num_backwards
        Backwards of graphs of the model so far.
    """

    def __init__(
        self,
        held: HeldState,
        others: Callable[[], tuple[Result, ...]],
        is_trained: Callable[[], None] | None = None,
        wants_record: Callable[[], bool] | None = None,
    ) -> None:
        self._held, self._others = held, others
        self._is_trained = None if is_trained is None else weakref.WeakMethod(is_trained)
        self._wants_record = None if wants_record is None else weakref.WeakMethod(wants_record)
        self._looks: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Looks]
        self._looks = weakref.WeakKeyDictionary()
        self._own: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.num_backwards = 0
        self._outside = OutsideGradients(held, lambda: bytes_of(others()))
        self._open: _Open | None = None
        self._peaks: dict[str, OptimizerPeak] = {}
        self._said: set[tuple[str, bool]] = set()
        _all.add(self)

    def begins(self, optimizer: torch.optim.Optimizer) -> None:
        """A step of `optimizer` begins: measure it, if it is this model's and not known yet."""
        self._outside.begins(optimizer, _backwards_for(optimizer))
        looks = self._looks.setdefault(optimizer, _Looks())
        if not looks.begins(goes_on=not self._is_wanted()):
            return
        device = self._held.device_of(optimizer)
        if device is not None:
            self._own.add(optimizer)
        # A record that ends with the step could begin under no other one.
        if device is None or in_backward() or (device.type == "cpu" and not may_record()):
            return
        self.close()
        is_record, others = device.type == "cpu", self._others()
        if is_record:  # the first step makes the states: they are in its peak
            resident = self._held.present_bytes + bytes_of(others)
        else:
            resident = requested_bytes(device)
        meter = outside_meter(device)
        if meter is None:
            return
        looks.num_steps += 1
        meter.start()
        watched = _watched(self._held.present_gradients(), meter) if is_record else ()
        self._open = _Open(optimizer, meter, resident, is_record, others, watched)
        end = weakref.WeakMethod(self.close)
        close_later(lambda: (close := end()) is not None and close())

    @property
    def peak_bytes(self) -> int:
        """The most that a measured step has taken; 0 before any."""
        return max((peak.peak_bytes for peak in self._peaks.values()), default=0)

    def ends(self, optimizer: torch.optim.Optimizer) -> None:
        """The step of `optimizer` is over: what comes is the code behind it."""
        if optimizer in self._own:
            self._own.discard(optimizer)
            tell = None if self._is_trained is None else self._is_trained()
            trains = self._held.has_gradient_for(optimizer) and changes_parameters(optimizer)
            if tell is not None and trains:
                tell()
        if self._open is not None and self._open.optimizer is optimizer:
            self._open.meter.mark()
            if self._open.is_record and self._is_wanted():
                self._close(is_whole=False)
        self._outside.ends(optimizer, may_measure=self._open is None)

    def close(self) -> bool:
        """End the record of a step, where the loop goes on; whether there was one."""
        # Code up to another optimizer's step may be what makes gradients for that.
        return self._close(is_whole=not is_any_stepping())

    def _close(self, *, is_whole: bool) -> bool:
        """End it; `is_whole` where the code behind the step has run."""
        ended = self._outside.close()
        found, self._open = self._open, None
        if found is None:
            return ended
        stretches = found.meter.stop()
        if len(stretches) == 2:
            step, behind = stretches
            self._looks[found.optimizer].num_behind += is_whole
            peak = found.resident_bytes + step.top
            # When exactly the next batch takes the place of the last one is not known.
            gone = bytes_of(it for it in found.others if it.is_gone) if found.is_record else 0
            self._learn(
                OptimizerPeak(
                    type(found.optimizer).__name__,
                    _remedy(found, peak, step.most - step.net_left),
                    peak,
                    step.most - step.net_left,
                    found.resident_bytes - gone + behind.top if is_whole else 0,
                )
            )
        return True

    def _is_wanted(self) -> bool:
        """Whether the next step of the loop is to be measured by a record of its own."""
        wants = None if self._wants_record is None else self._wants_record()
        return wants is not None and wants()

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
        if not in_backward():
            self.close()  # of the last step
        return [
            f"  {peak.name}.step takes {format_bytes(peak.peak_bytes)}"
            + (f", what follows {format_bytes(peak.behind_bytes)}" if peak.behind_bytes else "")
            for peak in self._peaks.values()
        ]


def _watched(
    gradients: Iterable[torch.Tensor], meter: OutsideMeter
) -> tuple[weakref.ref[torch.Tensor], ...]:
    """References to `gradients` that tell `meter` of each that goes, as where they are zeroed."""

    def watch(gradient: torch.Tensor) -> weakref.ref[torch.Tensor]:
        num_bytes = share_of(gradient).untyped_storage().nbytes()
        return weakref.ref(gradient, lambda _: meter.release(num_bytes))

    whole = (
        it for it in gradients if it.layout is torch.strided and num_holders(share_of(it)) == 2
    )
    return tuple(map(watch, whole))


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
