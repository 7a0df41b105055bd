"""The requests of a schedule, assembled from the recorded requests of each op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .caching import SMALL_SEGMENT
from .requests import Requests

if TYPE_CHECKING:
    from ..dataflow.recorded_step import RecordedStep
    from ..simulation.result import Simulation


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
        self.saving = saving_runs(self.names)
        graph = simulation._graph
        self.given_bytes = graph.static_bytes + sum(graph.inputs.values())
        self.dying = _dying(simulation)
        self.taken, self.bare = _taken_over(simulation), _without_optional(simulation)
        self.sizes: list[int] = []
        self.labels: list[str] = []
        self.items: list[int] = []
        self.events: list[int] = []
        self.live: dict[int, int] = {}  # block -> item

    def played(self) -> Requests:
        gaps, live_bytes = [], 0
        grows = bool(self.recorded.allocator_options.get("expandable_segments"))
        for segment in self.recorded.resident_segments:
            whole = sum(map(abs, segment))
            # request the segment's size first, which its blocks do not tell
            if whole > SMALL_SEGMENT and not grows:
                self._give_back(self._ask(whole, "resident", -1), -1)
            for size in segment:
                item = self._ask(abs(size), "resident", -1)
                if size < 0:
                    gaps.append(item)
                live_bytes += max(0, size)
        for item in gaps:
            self._give_back(item, -1)
        empty_before = len(self.items) if grows and gaps else 0
        kept = self.recorded.kept_blocks
        made_bytes = self.recorded.made_at_end_bytes + self.recorded.kept_bytes
        rest = self.given_bytes - live_bytes - made_bytes
        if rest > 0:
            self._ask(rest, "static bytes", -1)
        num = len(self.names)
        for step in range(self.num_steps):
            at = 2 * num * step
            for k, name in enumerate(self.names):
                record = self.recorded.record_of(
                    name, saves=k in self.saving, bare=k in self.bare, first=step == 0
                )
                self._play(record, f"of {name}", at + 2 * k, self.taken.get(k, {}))
                for tensor in self.dying[k]:
                    for block in self.recorded.held_by(tensor):
                        self._release(block, at + 2 * k + 1)
            ends = self.recorded.first_end if step == 0 else self.recorded.later_end
            of_runs = [block for block in self.live if block not in kept]
            self._play(ends, "at the step's end", at + 2 * num - 1)
            for block in of_runs:
                self._release(block, at + 2 * num - 1)
            self.live.clear()  # blocks made there, and gradients that are kept, are never released
        return Requests(
            np.array(self.items, dtype=np.int64),
            np.array(self.events, dtype=np.int64),
            np.array(self.sizes, dtype=np.int64),
            np.zeros(len(self.sizes), dtype=np.int64),
            tuple(self.labels),
            2 * num * self.num_steps,
            rounding_bytes=max(0, -rest),
            empty_before=empty_before,
        )

    def _play(
        self,
        record: Sequence[int],
        label: str,
        event: int,
        taken: Mapping[str, str] | None = None,
    ) -> None:
        """`record`; `taken`: of tensors in place, the tensor whose storage they take over."""
        for block in record:
            if block < 0:
                self._release(~block, event)
                continue
            holder = self.recorded.holders[block]
            if taken and holder in taken:
                sources = self.recorded.held_by(taken[holder])
                source = next((b for b in sources if b in self.live), None)
                if source is not None:
                    self.live[block] = self.live.pop(source)
                    continue
            self._release(block, event)  # of a run before that nobody gave back
            size = self.recorded.block_bytes[block]
            self.live[block] = self._ask(size, holder or label, event)

    def _ask(self, size: int, label: str, event: int) -> int:
        item = len(self.sizes)
        self.sizes.append(size)
        self.labels.append(label)
        self.items.append(item)
        self.events.append(event)
        return item

    def _release(self, block: int, event: int) -> None:
        item = self.live.pop(block, None)
        if item is not None:
            self._give_back(item, event)

    def _give_back(self, item: int, event: int) -> None:
        self.items.append(~item)
        self.events.append(event)


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
