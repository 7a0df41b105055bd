"""The requests of a schedule, assembled from the recorded requests of each op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..dataflow.record_tables import NONE
from .caching import SMALL_SEGMENT
from .requests import Requests

if TYPE_CHECKING:
    from ..dataflow.recorded_step import RecordedStep
    from ..simulation.result import Simulation
    from ._step_requests import StepRuns

_RESIDENT = ("resident", "static bytes")
"""Labels of what is requested before the first step."""


def recorded_requests(
    simulation: Simulation, recorded: RecordedStep, num_steps: int = 1
) -> Requests:
    """The requests that `num_steps` steps of a simulated schedule make of the allocator.

    Resident blocks are requested before the first step, in the order of their addresses. Static
    bytes beyond these, except those that the first step makes, are one more request.
    Each run plays the record of its op; at its end the blocks of tensors without a later reader are
    released. An in-place output takes the block of its input. The record of what follows the last
    op ends the step.

    Notes
    -----
    O(n) for n requests.
    """
    return _Player(simulation, recorded, num_steps).played()


def saving_runs(names: Sequence[str]) -> set[int]:
    """The runs of forward ops ``F<i>`` whose saved bundle ``B<i>`` reads: the last run before it.

    Examples
    --------
    >>> sorted(saving_runs(["F0", "F1", "loss", "B1", "F0", "B0"]))
    [1, 4]
    """
    owed: set[str] = set()
    found = set()
    for k in range(len(names) - 1, -1, -1):
        name = names[k]
        if name[0] == "B":
            owed.add(f"F{name[1:]}")
        elif name in owed:
            owed.remove(name)
            found.add(k)
    return found


class _Player:
    def __init__(self, simulation: Simulation, recorded: RecordedStep, num_steps: int) -> None:
        self.recorded, self.num_steps = recorded, num_steps
        self.names = simulation.run_names
        graph = simulation._graph
        self.given_bytes = graph.static_bytes + sum(graph.inputs.values())
        self.runs = _runs_of(simulation, recorded, first=False)
        self.first_runs = self.runs
        if recorded.first_records:
            self.first_runs = _runs_of(simulation, recorded, first=True)

    def played(self) -> Requests:
        """The resident blocks, then the steps."""
        from ._step_requests import play_step  # loads the compiler

        tables, table_ends = self.recorded.tables, self.recorded.tables.ends
        prefix = self._resident()
        step_events = 2 * len(self.names)
        parts = [prefix]
        later: _ItemRun | None = None
        for step in range(self.num_steps):
            first = step == 0
            if first or later is None:
                runs = self.first_runs if first else self.runs
                part = _ItemRun(*play_step(tables, runs, table_ends[0 if first else 1]))
                # All steps but the first are alike; the first, too, where it makes nothing.
                if not first or (
                    not self.recorded.first_records
                    and self.recorded.first_end == self.recorded.later_end
                ):
                    later = part
            else:
                part = later
            parts.append(part)
        items, events, sizes, labels = [], [], [], []
        num_items = 0
        for number, part in enumerate(parts):
            items.append(np.where(part.items >= 0, part.items + num_items, part.items - num_items))
            events.append(part.events + step_events * max(0, number - 1))
            sizes.append(part.sizes)
            labels.append(part.labels)
            num_items += part.sizes.size
        names = np.array(self._labels(), dtype=object)
        return Requests(
            np.concatenate(items),
            np.concatenate(events),
            np.concatenate(sizes),
            np.zeros(num_items, dtype=np.int64),
            tuple(names[np.concatenate(labels)].tolist()),
            step_events * self.num_steps,
            rounding_bytes=self.rounding_bytes,
            empty_before=self.empty_before,
        )

    def _labels(self) -> list[str]:
        """What a label of an item means: a tensor, a run, or one of three others."""
        of_runs = [f"of {name}" for name in self.names]
        return [*self.recorded.tables.tensors, *of_runs, "at the step's end", *_RESIDENT]

    def _resident(self) -> _ItemRun:
        """The requests before the first step."""
        gaps, live_bytes = [], 0
        items: list[int] = []
        sizes: list[int] = []
        grows = bool(self.recorded.allocator_options.get("expandable_segments"))

        def ask(size: int) -> int:
            items.append(len(sizes))
            sizes.append(size)
            return len(sizes) - 1

        for segment in self.recorded.resident_segments:
            whole = sum(map(abs, segment))
            # request the segment's size first, which its blocks do not tell
            if whole > SMALL_SEGMENT and not grows:
                items.append(~ask(whole))
            for size in segment:
                item = ask(abs(size))
                if size < 0:
                    gaps.append(item)
                live_bytes += max(0, size)
        items += [~item for item in gaps]
        self.empty_before = len(items) if grows and gaps else 0
        made_bytes = self.recorded.made_at_end_bytes + self.recorded.kept_bytes
        rest = self.given_bytes - live_bytes - made_bytes
        self.rounding_bytes = max(0, -rest)
        resident, static = self._num_labels - 2, self._num_labels - 1
        labels = [resident] * len(sizes)
        if rest > 0:
            ask(rest)
            labels.append(static)
        return _ItemRun(
            np.array(items, dtype=np.int64),
            np.full(len(items), -1, dtype=np.int64),
            np.array(sizes, dtype=np.int64),
            np.array(labels, dtype=np.int64),
        )

    @property
    def _num_labels(self) -> int:
        return len(self.recorded.tables.tensors) + len(self.names) + 1 + len(_RESIDENT)


class _ItemRun(NamedTuple):
    """Requests that follow one another; items are numbered from 0, events from the step's start."""

    items: NDArray[np.int64]
    events: NDArray[np.int64]
    sizes: NDArray[np.int64]
    labels: NDArray[np.int64]


def _runs_of(simulation: Simulation, recorded: RecordedStep, *, first: bool) -> StepRuns:
    """The record of each run, what dies after it, and whose storage its outputs take over."""
    from ._step_requests import StepRuns  # loads the compiler

    tables, names = recorded.tables, simulation.run_names
    saving, bare = saving_runs(names), _without_optional(simulation)
    rows = [
        recorded.row_of(name, saves=k in saving, bare=k in bare, first=first)
        for k, name in enumerate(names)
    ]
    number = tables.tensors
    dying = [[number[t] for t in dead if t in number] for dead in _dying(simulation)]
    if first:
        for row, dead in zip(dying, _unread(simulation), strict=True):
            row += [tables.unread[t] for t in dead if t in tables.unread]
    over = _taken_over(simulation)
    taken = [over.get(k, {}).items() for k in range(len(names))]
    pairs = [
        [(number[out], number.get(source, NONE)) for out, source in row if out in number]
        for row in taken
    ]
    flat = [pair for row in pairs for pair in row]
    return StepRuns(
        np.array(rows, dtype=np.int64),
        np.array([tensor for row in dying for tensor in row], dtype=np.int64),
        np.cumsum([0, *map(len, dying)], dtype=np.int64),
        np.array([out for out, _ in flat], dtype=np.int64),
        np.array([source for _, source in flat], dtype=np.int64),
        np.cumsum([0, *map(len, pairs)], dtype=np.int64),
    )


def _dying(simulation: Simulation) -> list[list[str]]:
    """For each run, the tensors without a later reader, in the order in which they were made."""
    names = simulation._graph.arrays.tensor_names
    tensor = simulation._instances[0].tolist()
    made, freed, _ = simulation.instance_events
    found: list[list[str]] = [[] for _ in range(simulation.num_runs)]
    for i, end in enumerate(freed.tolist()):
        if 0 <= made[i] < end < 2 * simulation.num_runs:
            found[end // 2].append(names[tensor[i]])
    return found


def _unread(simulation: Simulation) -> list[list[str]]:
    """For each run, the tensors that it makes and that nobody reads."""
    names = simulation._graph.arrays.tensor_names
    tensor, first = (column.tolist() for column in simulation._instances[:2])
    found: list[list[str]] = [[] for _ in range(simulation.num_runs)]
    for i, end in enumerate(simulation.instance_events[1].tolist()):
        if 0 <= first[i] == end // 2:
            found[first[i]].append(names[tensor[i]])
    return found


def _taken_over(simulation: Simulation) -> dict[int, dict[str, str]]:
    """For each run with outputs in place: these outputs, and whose storage each takes over."""
    names = simulation._graph.arrays.tensor_names
    tensor, first, _, source, _ = (column.tolist() for column in simulation._instances)
    found: dict[int, dict[str, str]] = {}
    for i, shared in enumerate(simulation.instance_events[2].tolist()):
        if shared > 0:
            found.setdefault(first[i], {})[names[tensor[i]]] = names[tensor[source[i]]]
    return found


def _without_optional(simulation: Simulation) -> set[int]:
    """The runs that make none of their op's optional outputs."""
    arrays = simulation._graph.arrays
    optional = arrays.tensor_optional[simulation._instances[0]]
    first = simulation._instances[1]
    made, freed, _ = simulation.instance_events
    real = set(first[optional & (made < freed)].tolist())
    return set(first[optional].tolist()) - real
