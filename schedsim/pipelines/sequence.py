"""From an order of stages to one sequence of op runs for all devices."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..dataflow.streams import is_compute
from ..errors import InvalidScheduleError
from ..simulation.schedule import Schedule
from .lower import Template, make_template
from .orders import Action, Order
from .pipeline import Pipeline
from .stage_plans import StagePlan

StagePlans = Sequence[StagePlan | Sequence[StagePlan]]
"""A plan per stage; or several per stage, which its micro-batches take in turn."""


@dataclass
class _OpSequence:
    """Runs of all devices, each in its own order; dependencies are indices into these lists."""

    op: list[int] = field(default_factory=list)  # index in the graph
    stream: list[int] = field(default_factory=list)
    time_s: list[float] = field(default_factory=list)
    moves: list[bool] = field(default_factory=list)  # a message or a collective
    needs: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TimedSchedule:
    """A schedule, and the times of its runs if memory were unlimited.

    Attributes
    ----------
    schedule : Schedule
    start_s, end_s : (num_runs,) float64
    """

    schedule: Schedule
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]


def stage_plan_of(plans: StagePlans, stage: int, micro: int) -> StagePlan:
    """The plan that `stage` follows for micro-batch `micro`."""
    plan = plans[stage]
    return plan if isinstance(plan, StagePlan) else plan[micro % len(plan)]


def pipeline_schedule(pipeline: Pipeline, order: Order, plans: StagePlans) -> Schedule:
    """The sequence of op runs that follows from `order` and `plans` on the pipeline's graph.

    Runs are sorted by the times at which they would start if memory were unlimited; each run is
    followed by the messages and collectives that it causes. Every device keeps its own order, and
    every
    link sends its messages in the order in which they are made.

    Parameters
    ----------
    order
        Actions of each device, as from `schedsim.pipelines.orders`.
    plans
        One plan per stage, or several that its micro-batches take in turn.

    Raises
    ------
    InvalidScheduleError
        The order cannot run: two devices wait for each other, or an action is missing.

    Notes
    -----
    O(runs log devices).

    Examples
    --------
    >>> from schedsim.workloads.synthetic import uniform
    >>> from schedsim.pipelines import keep_all, make_order, make_pipeline
    >>> pipeline = make_pipeline(uniform(2), 2, 1)
    >>> pipeline_schedule(pipeline, make_order("1f1b", 2, 1), [keep_all(1)] * 2)
    Schedule(in.0 F0.0 send:a1.0 F1.0 loss.0 B1.0 send:d1.0 B0.0)
    """
    return timed_schedule(pipeline, order, plans).schedule


def timed_schedule(pipeline: Pipeline, order: Order, plans: StagePlans) -> TimedSchedule:
    """Like `pipeline_schedule`, with the times of the runs if memory were unlimited."""
    template = make_template(pipeline)
    program = _programs(pipeline, template, order, plans)
    computed, start, end = _in_time(pipeline, program)
    entries = np.array(_with_moves(program, computed), dtype=np.int64)
    runs = np.array(program.op, dtype=np.int64)[entries]
    schedule = Schedule(pipeline.graph.op_names, runs)
    return TimedSchedule(schedule, start[entries], end[entries])


def _programs(
    pipeline: Pipeline, template: Template, order: Order, plans: StagePlans
) -> _OpSequence:
    expander = _Expander(pipeline, template)
    program = _OpSequence()
    width = len(template.ops)
    streams: dict[str, int] = {}
    stream_of = [streams.setdefault(op.stream, len(streams)) for op in template.ops]
    time_of = [op.time_s for op in template.ops]
    moves = [not is_compute(op.stream) for op in template.ops]
    writer = {name: k for k, op in enumerate(template.ops) for name in op.writes}
    makers = [[writer[name] for name in op.reads] for op in template.ops]
    remote = [op.name.startswith("send:") for op in template.ops]
    sent: dict[int, int] = {}
    open_reads: list[tuple[int, int]] = []
    for actions in order:
        latest: dict[int, int] = {}
        for action in actions:
            base = action.micro * width
            for k in expander.runs(action, stage_plan_of(plans, action.stage, action.micro)):
                entry = len(program.op)
                needs = []
                for maker in makers[k]:
                    if remote[maker]:
                        open_reads.append((entry, base + maker))
                    elif base + maker in latest:
                        needs.append(latest[base + maker])
                    else:
                        raise _not_there(template, k, maker, action)
                program.op.append(base + k)
                program.stream.append(stream_of[k])
                program.time_s.append(time_of[k])
                program.moves.append(moves[k])
                program.needs.append(needs)
                latest[base + k] = entry
                if remote[k]:
                    sent[base + k] = entry
    for entry, message in open_reads:
        if message not in sent:
            op = template.ops[program.op[entry] % width]
            raise _cannot_run(f"{op.name}.{program.op[entry] // width} waits for a message")
        program.needs[entry].append(sent[message])
    return program


class _Expander:
    """Expands actions into op runs of one micro-batch, as indices into the template."""

    def __init__(self, pipeline: Pipeline, template: Template) -> None:
        self.pipeline, self.index = pipeline, template.index
        self.known: dict[tuple[str, int, StagePlan | None], list[int]] = {}

    def runs(self, action: Action, plan: StagePlan) -> list[int]:
        """The op runs of `action`, in order."""
        key = (action.kind, action.stage, plan if action.kind == "B" else None)
        if key not in self.known:
            make = {"F": self._forward, "B": self._backward, "W": self._weights}[action.kind]
            names = make(action.stage, plan)
            self.known[key] = [self.index[name] for name in names if name in self.index]
        return self.known[key]

    def _forward(self, stage: int, plan: StagePlan) -> list[str]:
        layers = self.pipeline.stage_layers(stage)
        names = ["in"] if stage == 0 else []
        for i in layers:
            names += [f"F{i}", f"reduce:a{i + 1}"]
        return [*names, f"send:a{layers.stop}"]

    def _backward(self, stage: int, plan: StagePlan) -> list[str]:
        layers = self.pipeline.stage_layers(stage)
        if plan.num_layers != len(layers):
            raise _cannot_run(f"stage {stage} has {len(layers)} layers, its plan {plan.num_layers}")
        num, names = self.pipeline.chain.num_stages, [f"wait:{stage}"]
        for at, run in enumerate(plan.backward):
            i = layers.start + int(run[1:])
            if run[0] == "F":
                names.append(f"F{i}")
                if _is_read(plan.backward, at, last=i == num - 1):
                    names.append(f"reduce:a{i + 1}")
            else:
                names += ["loss"] if i == num - 1 else []
                names += [f"B{i}", f"reduce:d{i}"]
        return [*names, f"send:d{layers.start}"]

    def _weights(self, stage: int, plan: StagePlan) -> list[str]:
        return [f"W{i}" for i in reversed(self.pipeline.stage_layers(stage))]


def _is_read(runs: Sequence[str], at: int, *, last: bool) -> bool:
    """Whether the output of the repeated layer at `at` is read before that layer runs again.

    Only then its collective runs again too. The loss, after the last layer, counts as a reader.
    """
    i = int(runs[at][1:])
    readers = {f"F{i + 1}", f"B{i + 1}"} | ({f"B{i}"} if last else set())
    for run in runs[at + 1 :]:
        if run in readers:
            return True
        if run == runs[at]:
            return False
    return False


def _with_moves(program: _OpSequence, entries: Sequence[int]) -> list[int]:
    """`entries`, each followed by its messages and collectives.

    Messages come before the next run of the device, which may overwrite what they read.
    """
    found = []
    for entry in entries:
        if program.moves[entry]:
            continue
        found.append(entry)
        after = entry + 1
        while after < len(program.op) and program.moves[after]:
            found.append(after)
            after += 1
    return found


def _in_time(
    pipeline: Pipeline, program: _OpSequence
) -> tuple[list[int], NDArray[np.float64], NDArray[np.float64]]:
    """Entries sorted by start, with each stream in its own order; and the times of all entries."""
    num = len(program.op)
    streams: list[list[int]] = [[] for _ in range(max(program.stream, default=-1) + 1)]
    for entry, stream in enumerate(program.stream):
        streams[stream].append(entry)
    place = [0] * len(streams)
    free = [0.0] * len(streams)
    start, end = np.zeros(num), np.zeros(num)
    ends: list[float | None] = [None] * num
    waiting: dict[int, list[int]] = {}
    heap: list[tuple[float, int]] = []
    found: list[int] = []

    def look(stream: int) -> None:
        """Put the next entry of `stream` on the heap, or make it wait for a missing input."""
        if place[stream] == len(streams[stream]):
            return
        begin = free[stream]
        for need in program.needs[streams[stream][place[stream]]]:
            at = ends[need]
            if at is None:
                waiting.setdefault(need, []).append(stream)
                return
            begin = max(begin, at)
        heapq.heappush(heap, (begin, stream))

    for stream in range(len(streams)):
        look(stream)
    while heap:
        begin, stream = heapq.heappop(heap)
        entry = streams[stream][place[stream]]
        place[stream] += 1
        start[entry] = begin
        done = begin + program.time_s[entry]
        ends[entry] = end[entry] = free[stream] = done
        found.append(entry)
        look(stream)
        for other in waiting.pop(entry, ()):
            look(other)
    if len(found) < num:
        stuck = next(q for q in range(len(streams)) if place[q] < len(streams[q]))
        op = program.op[streams[stuck][place[stuck]]]
        raise _cannot_run(f"{pipeline.graph.op_names[op]} waits for ever")
    return found, start, end


def _not_there(template: Template, op: int, maker: int, action: Action) -> InvalidScheduleError:
    return _cannot_run(
        f"{template.ops[op].name}.{action.micro} reads what {template.ops[maker].name} writes, "
        f"which its device has not run before {action}"
    )


def _cannot_run(what: str) -> InvalidScheduleError:
    return InvalidScheduleError(
        f"order: {what}",
        rule="order",
        run_index=None,
        op_name=what.split(" ")[0],
        hint="every stage of every micro-batch runs forward, then backward, once",
    )
