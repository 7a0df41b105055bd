"""Times of blocks, taken in whole steps, where caches and weights are as they are in training."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from schedsim.chain import Chain
from schedsim.graph import Graph
from schedsim.schedule import Schedule
from schedsim.simulator import simulate

from ..environment import device_memory_bytes
from .bench import Measured
from .parts import StepInputs
from .program import Run, make_program
from .runtime import Layout, Step

SHARE_OF_MEMORY = {"cpu": 0.5, "cuda": 0.8}
"""A step that takes more than this is not run only to be timed."""


def measure_times(
    layout: Layout,
    inputs: StepInputs,
    workload: Chain | Graph,
    rows: Sequence[Measured],
    device: torch.device,
    rounds: int,
) -> str:
    """Add `rounds` times of each op to `rows`, one per part, the loss last; how it was done.

    A forward that keeps nothing is timed in steps that replay every block; one that keeps its
    bundle, and the backward, in store-all steps, or where these do not fit in the replaying ones.
    """
    names = list(workload.op_names)
    at = names.index("loss")
    replaying = names[: at + 1]
    for backward in names[at + 1 :]:
        replaying += [f"F{backward[1:]}", backward]
    replay, everything = Schedule.from_names(replaying), Schedule.store_all(workload)
    room = SHARE_OF_MEMORY[device.type] * device_memory_bytes(device)
    fits = simulate(workload, everything).peak_bytes <= room
    for round_ in range(rounds + 1):
        for schedule in (replay, everything) if fits else (replay,):
            step = _timed_step(layout, inputs, workload, schedule, device)
            if round_ == 0:  # warms up
                continue
            keeps_last = schedule is everything or not fits
            for run, seconds in step:
                _note(rows[run.index], run, seconds, keeps=keeps_last)
    return "store-all steps" if fits else "steps that replay every block"


def _note(row: Measured, run: Run, seconds: float, *, keeps: bool) -> None:
    if run.kind == "F" and not run.saves:
        row.forward_s.append(seconds)
    elif not keeps:
        return
    elif run.kind == "F":
        row.saving_s.append(seconds)
    else:
        row.backward_s.append(seconds)


def _timed_step(
    layout: Layout,
    inputs: StepInputs,
    workload: Chain | Graph,
    schedule: Schedule,
    device: torch.device,
) -> list[tuple[Run, float]]:
    program = make_program(workload, schedule, len(layout.parts))
    clock = _CudaClock() if device.type == "cuda" else _Clock()
    given = StepInputs(inputs.arguments, inputs.keywords, inputs.extra)
    step = Step(layout, program, given, clock)
    with torch.no_grad():
        loss = step.forward()
        step.backward(torch.ones_like(loss))
    return clock.times()


class _Clock:
    """Seconds of each run, on the CPU."""

    def __init__(self) -> None:
        self.marks: list[tuple[Run, Any, Any]] = []
        self.started: Any = None

    def now(self) -> Any:
        """A mark in time."""
        return time.perf_counter()

    def begin(self, number: int, run: Run, step: Step) -> None:
        """A run starts."""
        self.started = self.now()

    def end(self, number: int, run: Run, step: Step) -> None:
        """A run ends."""
        self.marks.append((run, self.started, self.now()))

    def times(self) -> list[tuple[Run, float]]:
        """The runs with their seconds."""
        return [(run, end - begin) for run, begin, end in self.marks]


class _CudaClock(_Clock):
    """Seconds of each run by events on the stream, without waiting in between."""

    def now(self) -> Any:
        """An event after what has been started so far."""
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def times(self) -> list[tuple[Run, float]]:
        """The runs with their seconds."""
        torch.cuda.synchronize()
        return [(run, begin.elapsed_time(end) / 1000) for run, begin, end in self.marks]
