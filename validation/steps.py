"""Plain and scheduled steps of a real model from the same start: results, bytes and times."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from schedsim.simulation.schedule import Schedule

from .autocasts import run_backward
from .block_level import CapturedChain
from .block_level.repeated_forward import untouched
from .block_level.scheduled_blocks import ScheduledBlocks, loss_of, split_inputs
from .capture import CapturedGraph
from .capture.skeleton import count_extra_inputs
from .measure import AllocatorMeter, StorageTracker, storage_bytes, time_interleaved
from .measure.cuda import cuda_peak, requested_peak, reset_peak
from .measure.meters import no_collection
from .targets import LoadedTarget

PLAIN = "plain"


@dataclass
class StepBytes:
    """Bytes of one step.

    Attributes
    ----------
    total_bytes
        The peak: of storages on the CPU, requested of the allocator on CUDA.
    run_bytes
        The peak during each run of the schedule, where runs can be distinguished.
    by_kind, at_run
        Bytes by kind at the peak, and the run at which it occurs.
    allocated_bytes, reserved_bytes
        Bytes by CUDA's allocator: with its rounding, and with its caches.
    """

    total_bytes: int
    run_bytes: list[int] = field(default_factory=list)
    by_kind: dict[str, int] = field(default_factory=dict)
    at_run: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None


class MeasuredSteps:
    """Runs steps of one model by several schedules, and without a schedule (`PLAIN`).

    Parameters
    ----------
    schedules
        Schedules to run, by name.
    seed
        Seed of the random numbers of every step.
    """

    def __init__(
        self,
        target: LoadedTarget,
        captured: CapturedChain | CapturedGraph,
        schedules: Mapping[str, Schedule],
        *,
        seed: int = 0,
    ) -> None:
        self.target, self.captured, self.seed = target, captured, seed
        self.keeps_gradients = getattr(captured, "keeps_gradients", False)
        self.device = target.device
        self.modules: dict[str, Any] = {PLAIN: _PlainStep(target)}
        for name, schedule in schedules.items():
            self.modules[name] = captured.module(schedule)

    @property
    def resident(self) -> list[Any]:
        """Everything that exists before a step."""
        model, loss = self.target.model, self.target.loss
        found: list[Any] = [*model.parameters(), *model.buffers()]
        found += [p.grad for p in model.parameters() if p.grad is not None]
        if isinstance(loss, nn.Module):
            found += [*loss.parameters(), *loss.buffers()]
        return [found, self.target.inputs, dict(self.target.keywords)]

    def start(self) -> None:
        """Set gradients as the workload counts them, and the first random number.

        Gradients appear where they are made, unless the capture counted them as always resident:
        then they are zeroed where they lie, as by ``zero_grad(set_to_none=False)``.
        """
        for parameter in self.target.model.parameters():
            if not (self.keeps_gradients and parameter.requires_grad):
                parameter.grad = None
            elif parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()
        torch.manual_seed(self.seed)

    def step(self, which: str) -> Tensor:
        """Run forward and backward; returns the loss."""
        loss: Tensor = self.modules[which](*self.target.inputs, **self.target.keywords)
        run_backward(loss)
        return loss.detach()

    def results(self, which: str) -> list[Tensor]:
        """Loss, gradients and buffers of one step, on the host."""
        with untouched(self.target.model):
            self.start()
            return self._left(self.step(which))

    def peak(self, which: str) -> StepBytes:
        """Bytes of a step, everything resident included."""
        return self.run(which)[0]

    def run(self, which: str) -> tuple[StepBytes, list[Tensor]]:
        """Bytes and results of the same step."""
        with untouched(self.target.model), no_collection():
            self.start()
            if self.device.type == "cuda":
                return self._cuda_peak(which)
            return self._tracked_peak(which)

    def _steps(self, which: str) -> Tensor:
        """A step; where gradients are kept, the step that makes them before it.

        They then lie where they do in a loop.
        """
        if self.keeps_gradients:
            self.step(which)
            self.start()
        return self.step(which)

    def _left(self, loss: Tensor) -> list[Tensor]:
        """The results of a step, on the host."""
        model = self.target.model
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        found = [loss, *gradients, *model.buffers()]
        return [tensor.detach().to("cpu", copy=True) for tensor in found]

    def allocator_peak(self, which: str) -> int:
        """Bytes of a step by the CPU allocator's own record, in addition to what is resident."""
        with untouched(self.target.model):
            self.start()
            resident = storage_bytes(self.resident)
            [reading] = AllocatorMeter().read(lambda: self.step(which))
        return resident + reading.peak_bytes

    def times(self, names: list[str], rounds: int, *, warm_up: int = 1) -> dict[str, list[float]]:
        """Seconds of steps; every round runs all names in turn."""
        functions = {name: partial(self.step, name) for name in names}
        return time_interleaved(
            functions, rounds=rounds, warm_up=warm_up, device=self.device, before=self.start
        )

    def _tracked_peak(self, which: str) -> tuple[StepBytes, list[Tensor]]:
        module = self.modules[which]
        with StorageTracker() as tracker:
            tracker.add(self.resident, "static")
            if isinstance(module, ScheduledBlocks):
                watch = _StepWatch(tracker)
                module.observer = watch
                try:
                    loss = self.step(which)
                finally:
                    module.observer = None
                at = max(range(len(watch.peaks)), key=watch.peaks.__getitem__)
                peak = StepBytes(watch.peaks[at], watch.peaks, watch.kinds[at], at)
                return peak, self._left(loss)
            if not hasattr(module, "observe"):
                loss = self.step(which)
                return StepBytes(tracker.peak.total_bytes), self._left(loss)
            peaks: list[int] = []

            def before_run(_: int) -> None:
                peaks.append(tracker.peak.total_bytes)
                tracker.mark()

            module.observe(before_run)
            try:
                loss = self.step(which)
            finally:
                module.observe(None)
            peaks.append(tracker.peak.total_bytes)
            # The first peak is from before the first run.
            return StepBytes(max(peaks), peaks[1:]), self._left(loss)

    def _cuda_peak(self, which: str) -> tuple[StepBytes, list[Tensor]]:
        if self.keeps_gradients:
            for parameter in self.target.model.parameters():
                parameter.grad = None
        gc.collect()  # dead tensors that have not been collected would be counted
        found, loss = cuda_peak(lambda: self._steps(which), self.device)
        left = self._left(loss)
        peak = StepBytes(
            found.requested_bytes,
            allocated_bytes=found.allocated_bytes,
            reserved_bytes=found.reserved_bytes,
        )
        module = self.modules[which]
        if isinstance(module, ScheduledBlocks):
            self.start()
            module.observer = _CudaWatch(self.device, peak.run_bytes)
            try:
                self.step(which)
            finally:
                module.observer = None
            peak.at_run = max(range(len(peak.run_bytes)), key=peak.run_bytes.__getitem__)
        return peak, left


class _PlainStep(nn.Module):
    """The model and its loss, without a schedule."""

    def __init__(self, target: LoadedTarget) -> None:
        super().__init__()
        self.target = target
        self.extra = count_extra_inputs(target.model, target.loss, len(target.inputs))

    def forward(self, *inputs: Any, **keywords: Any) -> Tensor:
        """The loss."""
        given = split_inputs(inputs, keywords, self.extra)
        out = self.target.model(*given.arguments, **given.keywords)
        loss = self.target.loss
        return loss_of(out) if loss is None else loss(out, *given.extra)


class _StepWatch:
    """An observer of runs that notes the tracker's peak of each run, and labels storages."""

    def __init__(self, tracker: StorageTracker) -> None:
        self.tracker = tracker
        self.peaks: list[int] = []
        self.kinds: list[dict[str, int]] = []

    def begin(self, number: int, run: Any, step: Any) -> None:
        """Start a new peak."""
        self.tracker.mark()

    def end(self, number: int, run: Any, step: Any) -> None:
        """Label what this run made, then note its peak."""
        if run.kind == "F":
            self.tracker.add(step.values[run.index + 1], "activations")
            self.tracker.label_fresh("bundles")
        elif run.moves is not None:
            self.tracker.label_fresh("activations" if run.moves[0] == "a" else "bundles")
        else:
            self.tracker.add(list(step.gradients.values()), "gradients")
            self.tracker.label_fresh("static")  # the scalar loss, and the gradient it is given
        self.peaks.append(self.tracker.peak.total_bytes)
        self.kinds.append(self.tracker.kinds_at_peak())


class _CudaWatch:
    """An observer that notes the requested bytes of each run."""

    def __init__(self, device: torch.device, peaks: list[int]) -> None:
        self.device, self.peaks = device, peaks

    def begin(self, number: int, run: Any, step: Any) -> None:
        """Start a new peak."""
        reset_peak(self.device)

    def end(self, number: int, run: Any, step: Any) -> None:
        """Allocations follow the order of calls, so that nothing waits for the device."""
        self.peaks.append(requested_peak(self.device))
