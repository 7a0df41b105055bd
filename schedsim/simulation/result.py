"""The result of a simulation: times, bytes, and what they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..dataflow.shown_in_notebooks import ShownInNotebooks
from ..dataflow.streams import DEVICE, is_compute
from ..units import format_bytes, format_seconds
from .categories import CATEGORIES, RUN_KINDS
from .course import CAUSES, Course, IssueOrder
from .issue_order import issue_order
from .pool_bytes import instance_events, live_bytes, pool_timeline

if TYPE_CHECKING:
    from ..dataflow.graph import Graph
    from .schedule import Schedule

__all__ = ["CATEGORIES", "RUN_KINDS", "LiveTensor", "Simulation"]


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """A tensor instance that is alive during some run.

    Attributes
    ----------
    name : str
    size_bytes : int
    category : str
        One of `CATEGORIES`.
    first_run, last_run : int
        The instance lives from the start of `first_run` to the end of `last_run`, which is the last
        of its readers in the schedule.
    pool : str
    """

    name: str
    size_bytes: int
    category: str
    first_run: int
    last_run: int
    pool: str = DEVICE


@dataclass(frozen=True)
class Simulation(ShownInNotebooks):
    """The cost of a schedule on a workload, run by run.

    Attributes
    ----------
    workload_name : str
    schedule : Schedule
    memory_bytes : (num_runs,) int64
        Bytes in use when each run has started: static, live instances, outputs and workspace. On
        several streams, in the memory of the device that the run works for.
    peak_bytes, peak_run : int
        The largest use of a device's memory, and the first run whose start reaches it.
    peak_op : str
        Name of the op of that run.
    makespan_s, store_all_s : float
        Time of this step, and of the step that recomputes nothing.
    peak_by_pool : mapping of str to int
        The largest use of each memory pool, the host's among them.
    course : Course or None
        The engine's record, causes of waiting included; ``None`` on one stream.

    Notes
    -----
    A simulation is a sequence of events, two for each run: its start and its end. Memory changes
    only at events: `pool_bytes` holds the bytes after each event, `event_s` the time of each event.
    """

    workload_name: str
    schedule: Schedule
    memory_bytes: NDArray[np.int64]
    peak_bytes: int
    peak_run: int
    peak_op: str
    makespan_s: float
    store_all_s: float
    static_bytes: int
    peak_by_pool: Mapping[str, int]
    _graph: Graph
    _runs: NDArray[np.int32]
    _instances: tuple[NDArray[Any], ...]
    _workspace: NDArray[np.int64]
    course: Course | None = None
    _run_s: NDArray[np.float64] | None = None

    @property
    def overhead(self) -> float:
        """Extra time relative to store-all: makespan / store_all_s - 1."""
        return self.makespan_s / self.store_all_s - 1.0 if self.store_all_s else 0.0

    @property
    def num_runs(self) -> int:
        """Number of op runs."""
        return int(self._runs.size)

    @property
    def num_recomputed(self) -> int:
        """Number of runs beyond the first of each op; copies are not counted."""
        required = self._graph.arrays.op_required
        return int(required[self._runs].sum() - required.sum())

    @property
    def num_copies(self) -> int:
        """Number of runs that copy a tensor because the schedule says so."""
        return int(self._graph.arrays.op_copy[self._runs].sum())

    @property
    def run_s(self) -> NDArray[np.float64]:
        """Seconds that each run takes, ``(num_runs,)``."""
        if self._run_s is not None:
            return self._run_s
        return self._graph.arrays.op_time_s[self._runs]

    @cached_property
    def run_kinds(self) -> NDArray[np.uint8]:
        """Kind of each run, ``(num_runs,)``: indices into `RUN_KINDS`."""
        phase = self._graph.arrays.op_phase[self._runs]
        again = np.ones(self.num_runs, dtype=bool)
        again[np.unique(self._runs, return_index=True)[1]] = False
        forward = np.where(again, RUN_KINDS.index("recomputed"), RUN_KINDS.index("forward"))
        loss, backward = RUN_KINDS.index("loss"), RUN_KINDS.index("backward")
        kinds = np.where(phase == 0, forward, np.where(phase == 1, loss, backward))
        moves = np.array([not is_compute(name) for name in self.stream_names])[self.run_streams]
        return np.where(moves, RUN_KINDS.index("copy"), kinds).astype(np.uint8)

    @property
    def stream_names(self) -> tuple[str, ...]:
        """Streams of the workload, in the order in which its ops name them."""
        return self._graph.arrays.stream_names

    @property
    def pool_names(self) -> tuple[str, ...]:
        """Memory pools of the workload; the ``device`` first."""
        return self._graph.arrays.pool_names

    @property
    def run_streams(self) -> NDArray[np.int64]:
        """Stream of each run, ``(num_runs,)``: indices into `stream_names`."""
        return self._graph.arrays.op_stream[self._runs]

    @property
    def run_names(self) -> list[str]:
        """Name of the op of each run."""
        names = self._graph.op_names
        return [names[run] for run in self._runs.tolist()]

    @cached_property
    def end_s(self) -> NDArray[np.float64]:
        """When each run ends, in seconds from the start of the step, ``(num_runs,)``."""
        return np.cumsum(self.run_s) if self.course is None else self.course.end_s

    @cached_property
    def start_s(self) -> NDArray[np.float64]:
        """When each run starts, ``(num_runs,)``."""
        if self.course is not None:
            return self.course.start_s
        return np.concatenate([np.zeros(min(1, self.num_runs)), self.end_s[:-1]])

    @property
    def busy_s(self) -> dict[str, float]:
        """Seconds that each stream spends on runs."""
        spent = np.bincount(self.run_streams, self.run_s, len(self.stream_names))
        return dict(zip(self.stream_names, spent.tolist(), strict=True))

    @cached_property
    def issue_order(self) -> IssueOrder:
        """The instance that each run reads, and the run that writes it; the order alone decides."""
        if self.course is not None:
            return self.course.order
        return issue_order(self._graph, self._runs)

    def instance_name(self, instance: int) -> str:
        """Name of the tensor of `instance`."""
        return self._graph.arrays.tensor_names[int(self._instances[0][instance])]

    @property
    def wait_causes(self) -> list[str]:
        """The last cause of waiting of each run, one of `schedsim.simulation.course.CAUSES`."""
        if self.course is None:
            return ["nothing", *["stream"] * (self.num_runs - 1)]
        return [CAUSES[code] for code in self.course.cause.tolist()]

    @cached_property
    def events(self) -> NDArray[np.int64]:
        """Events in order of time, ``(2 * num_runs,)``: ``2 * k`` is the start of run k.

        ``2 * k + 1`` is its end.
        """
        return np.arange(2 * self.num_runs) if self.course is None else self.course.events

    @cached_property
    def event_s(self) -> NDArray[np.float64]:
        """Time of each event in seconds, ``(2 * num_runs,)``, ascending."""
        runs = self.events // 2
        return np.where(self.events % 2 == 0, self.start_s[runs], self.end_s[runs])

    @cached_property
    def _event_of(self) -> NDArray[np.int64]:
        """Place among the events of ``2 * k`` and ``2 * k + 1``."""
        place = np.empty_like(self.events)
        place[self.events] = np.arange(self.events.size)
        return place

    @cached_property
    def instance_events(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Three arrays over instances, ``(num_instances,)`` each: made by, freed by, shared bytes.

        The first two hold events: the event that makes the instance (-1 for a graph input) and the
        event that frees it (``2 * num_runs`` for one that lives to the end). An instance that is
        never materialised is freed by the event that makes it. The third holds the bytes that the
        instance takes over from the storage of an input.
        """
        return instance_events(
            self._graph.arrays, self._instances, self._event_of, self.num_runs, self.course
        )

    def pool_bytes(self, pool: str = DEVICE) -> NDArray[np.int64]:
        """Bytes in use in `pool` after each event, ``(2 * num_runs,)``."""
        total = np.zeros(2 * self.num_runs, dtype=np.int64)
        for row in self.pool_timeline(pool).values():
            total += row
        return total

    def pool_timeline(self, pool: str = DEVICE) -> dict[str, NDArray[np.int64]]:
        """Bytes in use in `pool` after each event by category, ``(2 * num_runs,)`` each.

        Storage that an output takes over counts for the input until the run of the output ends.
        """
        if pool not in self.pool_names:
            raise KeyError(pool)
        return pool_timeline(
            self._graph.arrays,
            self._runs,
            self._instances,
            self.instance_events,
            self._event_of,
            self._workspace,
            self.pool_names.index(pool),
        )

    @cached_property
    def timeline(self) -> dict[str, NDArray[np.int64]]:
        """Bytes per category during each run, ``(num_runs,)`` each.

        The categories add up to `memory_bytes`. A negative workspace counts with the gradients: it
        is what the op frees before it makes some of them. An output that takes over its input's
        storage is charged only for the bytes beyond that storage.
        """
        if self.course is not None:
            return self._timeline_at_starts()
        category = self._instances[-1]
        table: dict[str, NDArray[np.int64]] = {}
        for code, name in enumerate(CATEGORIES):
            if name == "static":
                table[name] = np.full(self.num_runs, self.static_bytes, dtype=np.int64)
            elif name == "workspace":
                table[name] = np.maximum(self._workspace, 0)
            else:
                table[name] = live_bytes(
                    self._graph.arrays, self._instances, category == code, self.num_runs
                )
        # What an op frees before it makes gradients makes room for as many bytes of these.
        table["gradients"] = table["gradients"] + np.minimum(self._workspace, 0)
        return table

    def _timeline_at_starts(self) -> dict[str, NDArray[np.int64]]:
        """`timeline` on several streams: the memory of the run's device, right after its start."""
        at = self._event_of[0::2]
        homes = self._graph.arrays.op_home[self._runs]
        table = {name: np.zeros(self.num_runs, dtype=np.int64) for name in CATEGORIES}
        for number in np.unique(homes).tolist():
            mine = homes == number
            for name, row in self.pool_timeline(self.pool_names[number]).items():
                table[name][mine] = row[at[mine]]
        return table

    def by_category(self, run: int | None = None) -> dict[str, int]:
        """Bytes per category during `run`; ``None`` means the run of the peak."""
        at = self._at(run)
        return {name: int(row[at]) for name, row in self.timeline.items()}

    def live_tensors(self, run: int | None = None) -> list[LiveTensor]:
        """The instances alive as `run` starts (by default the peak's), largest first."""
        at = self._at(run)
        tensor, first, last, _, category = self._instances
        arrays = self._graph.arrays
        alive = (first <= at) & (last >= at)
        if self.course is not None:
            made, freed, _ = self.instance_events
            event = self._event_of[2 * at]
            alive = (made <= event) & (event < freed)
        found = [
            LiveTensor(
                name=arrays.tensor_names[tensor[i]],
                size_bytes=int(arrays.tensor_bytes[tensor[i]]),
                category=CATEGORIES[category[i]],
                first_run=int(first[i]),
                last_run=int(last[i]),
                pool=self.pool_names[arrays.tensor_pool[tensor[i]]],
            )
            for i in np.flatnonzero(alive)
        ]
        return sorted(found, key=lambda item: -item.size_bytes)

    def _at(self, run: int | None) -> int:
        """The run of the peak for ``None``; a negative `run` counts from the end."""
        return self.peak_run if run is None else range(self.num_runs)[run]

    def __str__(self) -> str:
        lines = [
            f"{self.workload_name}: {self.num_runs} runs, {self.num_recomputed} recomputed",
            f"  peak      {format_bytes(self.peak_bytes)} at run {self.peak_run} ({self.peak_op})",
        ]
        for name, size in self.by_category().items():
            if size:
                lines.append(f"    {name:<12}{format_bytes(size)}")
        for pool, size in self.peak_by_pool.items():
            if len(self.peak_by_pool) > 1:
                lines.append(f"  {pool:<10}{format_bytes(size)} at most")
        lines.append(
            f"  makespan  {format_seconds(self.makespan_s)} "
            f"({self.overhead:+.2%} over store-all {format_seconds(self.store_all_s)})"
        )
        return "\n".join(lines)
