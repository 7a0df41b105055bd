"""Times of blocks, measured in whole steps, where caches and weights are as in training."""

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
"""A step that would take a larger share than this is not run only to measure times."""


def measure_times(
    layout: StepLayout,
    inputs: StepInputs,
    workload: Chain | Graph,
    rows: Sequence[Measured],
    device: torch.device,
    rounds: int,
    ranks: Ranks = ALONE,
) -> str:
    """Add `rounds` times of each op to `rows`, one row a part, the loss last; how, in words.

    Two kinds of steps are timed: the step that replays every block, and store-all where that fits;
    with several `ranks`, where it fits on all of them. By a data sheet, an op takes equally long in
    every step: one replaying step, without warm-up, tells all.
    """
    by_sheet = not has_times(device)
    replay, everything = _replaying(workload), Schedule.store_all(workload)
    room = SHARE_OF_MEMORY[device.type] * device_memory_bytes(device)
    roomy = not by_sheet and simulate(workload, everything).peak_bytes <= room
    fits = ranks.all(roomy, "choose steps to time")
    for round_ in range(1 if by_sheet else 0, rounds + 1):
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
    return f"{how}, by roofline" if by_sheet else how


IMPLAUSIBLE = 20.0
"""Kept times that are so many times as long as a step now were measured on a busy machine."""


def step_seconds(
    layout: StepLayout,
    inputs: StepInputs,
    workload: Chain | Graph,
    device: torch.device,
) -> float:
    """Seconds of the runs of one step that replays every block, without warm-up."""
    runs = _timed_step(layout, inputs, workload, _replaying(workload), device)
    return sum(seconds for _, seconds in runs)


def spread_of(rows: Sequence[Measured]) -> float:
    """The spread of the rounds of an op, as a share of their median, over most ops by time."""
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
    """The clock for runs on `device`; on a dry device, its data sheet gives the times."""
    if not has_times(device):
        return _DataSheetClock()
    return _CudaClock() if device.type == "cuda" else _Clock()


class _Clock:
    """Measures the seconds of each run on the CPU."""

    def __init__(self) -> None:
        self.marks: list[tuple[BlockRun, Any, Any]] = []
        self.started: Any = None

    def counting(self) -> AbstractContextManager[Any]:
        """A context manager to enter around the step."""
        return nullcontext()

    def now(self) -> Any:
        """The present moment."""
        return time.perf_counter()

    def begin(self, number: int, run: BlockRun, step: BlockStep) -> None:
        """Note that a run starts."""
        self.started = self.now()

    def end(self, number: int, run: BlockRun, step: BlockStep) -> None:
        """Note that a run ends."""
        self.marks.append((run, self.started, self.now()))

    def times(self) -> list[tuple[BlockRun, float]]:
        """The runs with their seconds."""
        return [(run, end - begin) for run, begin, end in self.marks]


class _CudaClock(_Clock):
    """Measures the seconds of each run by events on the stream, without waiting in between."""

    def now(self) -> Any:
        """An event after all work that has been issued so far."""
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def times(self) -> list[tuple[BlockRun, float]]:
        """The runs with their seconds."""
        torch.cuda.synchronize()
        return [(run, begin.elapsed_time(end) / 1000) for run, begin, end in self.marks]


class _DataSheetClock(_Clock):
    """Computes the seconds of each run from the data sheet of the device that is emulated."""

    def __init__(self) -> None:
        super().__init__()
        from ..costs.roofline_clock import RooflineClock

        self.clock = RooflineClock(get_dry_device(dry_device_name() or "").roofline)

    def counting(self) -> AbstractContextManager[Any]:
        """The mode that observes the ops."""
        return self.clock

    def now(self) -> Any:
        """Seconds of the ops so far."""
        return self.clock.elapsed_s
