"""Times of blocks, taken in whole steps, where caches and weights are as they are in training."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from ..dry_cuda import dry_device_name, get_dry_device, has_times
from ..environment import device_memory_bytes
from ..ranks import ALONE, Ranks
from .bench import Measured
from .block_program import BlockRun, make_program
from .parts import StepInputs
from .runtime import BlockStep, StepLayout

SHARE_OF_MEMORY = {"cpu": 0.5, "cuda": 0.8}
"""A step that takes more than this is not run only to be timed."""


def measure_times(
    layout: StepLayout,
    inputs: StepInputs,
    workload: Chain | Graph,
    rows: Sequence[Measured],
    device: torch.device,
    rounds: int,
    ranks: Ranks = ALONE,
) -> str:
    """Add `rounds` times of each op to `rows`, one per part, the loss last; how it was done.

    Two kinds of steps are timed, those that replay every block, and store-all where that fits; on
    `ranks` where it fits all.
    """
    replay, everything = _replaying(workload), Schedule.store_all(workload)
    room = SHARE_OF_MEMORY[device.type] * device_memory_bytes(device)
    fits = ranks.all(simulate(workload, everything).peak_bytes <= room, "choose steps to time")
    for round_ in range(rounds + 1):
        for schedule in (replay, everything) if fits else (replay,):
            step = _timed_step(layout, inputs, workload, schedule, device)
            if round_ == 0:  # warms up
                continue
            keeping: dict[int, float] = {}
            for run, seconds in step:
                row = rows[run.index]
                if run.kind == "F" and not run.saves:
                    row.forward_s.append(seconds)
                    continue
                if run.kind == "F":
                    keeping[run.index] = seconds
                elif schedule is replay:
                    row.replayed_s.append(seconds + keeping.get(run.index, 0.0))
                if schedule is everything or not fits:
                    (row.saving_s if run.kind == "F" else row.backward_s).append(seconds)
    how = "store-all and replaying steps" if fits else "replaying steps"
    return how if has_times(device) else f"{how}, by roofline"


IMPLAUSIBLE = 20.0
"""Kept times so many times as long as a step now were measured on a busy machine."""


def step_seconds(
    layout: StepLayout,
    inputs: StepInputs,
    workload: Chain | Graph,
    device: torch.device,
) -> float:
    """Seconds of the runs of one step that replays every block, cold as it is."""
    runs = _timed_step(layout, inputs, workload, _replaying(workload), device)
    return sum(seconds for _, seconds in runs)


def spread_of(rows: Sequence[Measured]) -> float:
    """How far the rounds of an op lie apart, as a share of their median; of most ops, in time."""
    shares, weights = [], []
    for row in rows:
        for times in (row.forward_s, row.saving_s, row.backward_s, row.replayed_s):
            if len(times) > 1:
                low, middle, high = np.quantile(times, [0.25, 0.5, 0.75])
                shares.append((high - low) / middle if middle else 0.0)
                weights.append(middle)
    return float(np.average(shares, weights=weights)) if sum(weights) else 0.0


def _replaying(workload: Chain | Graph) -> Schedule:
    names = list(workload.op_names)
    at = names.index("loss")
    runs = names[: at + 1]
    for backward in names[at + 1 :]:
        runs += [f"F{backward[1:]}", backward]
    return Schedule.from_names(runs)


def _timed_step(
    layout: StepLayout,
    inputs: StepInputs,
    workload: Chain | Graph,
    schedule: Schedule,
    device: torch.device,
) -> list[tuple[BlockRun, float]]:
    program = make_program(workload, schedule, len(layout.parts))
    clock = _clock_of(device)
    given = StepInputs(inputs.arguments, inputs.keywords, inputs.extra)
    step = BlockStep(layout, program, given, clock)
    with torch.no_grad(), clock.counting():
        loss = step.forward()
        step.backward(torch.ones_like(loss))
    return clock.times()


def _clock_of(device: torch.device) -> _Clock:
    """What tells the time of runs on `device`: of a dry one, its data sheet does."""
    if not has_times(device):
        return _RooflineClock()
    return _CudaClock() if device.type == "cuda" else _Clock()


class _Clock:
    """Seconds of each run, on the CPU."""

    def __init__(self) -> None:
        self.marks: list[tuple[BlockRun, Any, Any]] = []
        self.started: Any = None

    def counting(self) -> AbstractContextManager[Any]:
        """To be entered around the step."""
        return nullcontext()

    def now(self) -> Any:
        """A mark in time."""
        return time.perf_counter()

    def begin(self, number: int, run: BlockRun, step: BlockStep) -> None:
        """A run starts."""
        self.started = self.now()

    def end(self, number: int, run: BlockRun, step: BlockStep) -> None:
        """A run ends."""
        self.marks.append((run, self.started, self.now()))

    def times(self) -> list[tuple[BlockRun, float]]:
        """The runs with their seconds."""
        return [(run, end - begin) for run, begin, end in self.marks]


class _CudaClock(_Clock):
    """Seconds of each run by events on the stream, without waiting in between."""

    def now(self) -> Any:
        """An event after what has been started so far."""
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def times(self) -> list[tuple[BlockRun, float]]:
        """The runs with their seconds."""
        torch.cuda.synchronize()
        return [(run, begin.elapsed_time(end) / 1000) for run, begin, end in self.marks]


class _RooflineClock(_Clock):
    """Seconds of each run by the data sheet of the device that the dry one stands for."""

    def __init__(self) -> None:
        super().__init__()
        from ..costs.roofline_clock import RooflineClock

        self.clock = RooflineClock(get_dry_device(dry_device_name() or "").roofline)

    def counting(self) -> AbstractContextManager[Any]:
        """The mode that sees the ops."""
        return self.clock

    def now(self) -> Any:
        """Seconds of the ops so far."""
        return self.clock.elapsed_s
