"""The calls of parts in one step, and the order in which their halves run."""

from __future__ import annotations

import gc
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from ...measure.storage import bytes_by_place
from ...torch_private.storage_refs import StorageWeakRef, is_gone
from ..checks.added_gradients import Trained
from ..parts.output_uses import OutputUse, Result
from ..parts.part_sizes import Binding
from ..parts.planned_part import PlannedPart
from .step_record import Key

_MOST_COLLECTIONS = 8
MOST_LATER = 16
"""Steps that may lie between the halves of a call, before it is taken to be held for good."""


@dataclass
class PartCall:
    """A forward of a part in the present step, whose backward may still come.

    Attributes
    ----------
    binding
        Numbers for the part's open sizes.
    header, place
        An object that lives as long as what the forward has saved, and its place meanwhile.
    kept_bytes
        Predicted bytes that the call saves, with its outputs.
    shared_bytes
        Bytes of inputs that are outputs of earlier calls.
    trained
        A number that calls share which train the same parameters.
    parameters
        What these are, where calls may share them.
    results
        Its outputs, which it does not hold.
    given
        The gradients that the backward was given, with their numbers, which it does not hold.
    lacking, gone
        Numbers of the gradients that the backward was not given, and of the outputs that were gone
        as it began.
    use
        What the loop had done with the outputs; ``None`` until the backward is over.
    """

    key: Key
    part: PlannedPart
    binding: Binding
    number: int
    kept_bytes: int
    shared_bytes: int
    trained: int = 0
    parameters: Trained | None = None
    header: StorageWeakRef | None = None
    place: int = 0
    results: tuple[Result, ...] = ()
    given: tuple[tuple[int, Result], ...] = ()
    lacking: frozenset[int] = frozenset()
    gone: frozenset[int] = frozenset()
    use: OutputUse | None = None
    is_done: bool = False

    @property
    def outputs(self) -> tuple[int, ...]:
        """The places of the outputs."""
        return tuple(result.place for result in self.results)

    def gone_bytes(self, *, read_inside: bool) -> int:
        """Bytes of the outputs that were gone as backward began, `read_inside` the part or not."""
        unread = self.part.outputs.unread()
        found = {
            result.place: result.size_bytes
            for i, result in enumerate(self.results)
            if i in self.gone and (i not in unread) == read_inside
        }
        return sum(found.values())

    @property
    def is_open(self) -> bool:
        """Whether the backward of the call may still come."""
        if self.is_done:
            return False
        return self.header is None or not is_gone(self.header)


@dataclass
class StepCalls:
    """The calls of one step.

    Attributes
    ----------
    rows
        The calls in the order of their forwards.
    order
        The halves as they run: `i` for the forward of call i, ``~i`` for its backward.
    beside
        Numbers of the other models whose steps were open as this one began.
    """

    rows: list[PartCall] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    beside: frozenset[int] = frozenset()

    def copy(self) -> StepCalls:
        """The same calls, to which others are added apart."""
        return StepCalls(list(self.rows), list(self.order), self.beside)

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys of the calls."""
        return tuple(call.key for call in self.rows)

    @property
    def opened(self) -> list[PartCall]:
        """The calls whose backward may still come."""
        return [call for call in self.rows if call.is_open]

    @property
    def is_open(self) -> bool:
        """Whether a backward may still come."""
        return any(call.is_open for call in self.rows)

    def left_behind(self) -> list[PartCall]:
        """The open calls, if all are held for good: their parts have run in many steps since.

        As of a forward whose output is held outside of the loop, and has no backward.
        """
        held: list[PartCall] = []
        if len(self.rows) <= MOST_LATER:
            return held
        for i, call in enumerate(self.rows):
            if call.is_open:
                later = self.rows[i + 1 :]
                if sum(it.is_done and it.part is call.part for it in later) < MOST_LATER:
                    return []
                held.append(call)
        return held

    @property
    def is_done(self) -> bool:
        """Whether all backwards have run."""
        return all(call.is_done for call in self.rows)

    @property
    def has_backward(self) -> bool:
        """Whether any backward has run to its end."""
        return any(call.is_done for call in self.rows)

    @property
    def halves(self) -> tuple[int, ...]:
        """`order`, as if the backwards that never came were the last ones: so long they keep."""
        never = [~i for i, call in enumerate(self.rows) if not call.is_done]
        return (*(half for half in self.order if half not in never), *never)

    def key_of(self, index: int, part: PlannedPart) -> Key:
        """The key of the coming call of `part`, which has this index."""
        return index, sum(call.part is part for call in self.opened)

    def number_of(self, header: torch.Tensor) -> int:
        """The number of the call that has saved `header`; -1 if it is of no call of this step.

        Calls that are done may have had theirs in the same place.
        """
        place = header.data_ptr()
        found = [i for i, call in enumerate(self.rows) if call.place == place]
        return next((i for i in reversed(found) if not self.rows[i].is_done), -1)

    def made(self) -> set[int]:
        """The places of the outputs of open calls."""
        return {place for call in self.opened for place in call.outputs}

    def shared_bytes(self, arguments: Iterable[Any], given: Container[int]) -> int:
        """Bytes of the `arguments` that open calls have made, or that are in `given`."""
        made = self.made()
        found = bytes_by_place(arguments)
        return sum(size for place, size in found.items() if place in made or place in given)


class Forgotten:
    """Runs the cycle collector where a call stays open only because its outputs are in a cycle.

    No step begins while a call is open.
    """

    def __init__(self) -> None:
        self._num_collections = 0

    def free(self, calls: StepCalls) -> bool:
        """Free outputs in cycles if an earlier call stays open although a later one is done.

        Returns
        -------
        bool
            Whether there were any: no later step keeps them for so long.
        """
        opened = [i for i, call in enumerate(calls.rows) if call.is_open]
        done = any(call.is_done for call in calls.rows[opened[0] :]) if opened else False
        if not done or self._num_collections >= _MOST_COLLECTIONS:
            return False
        self._num_collections += 1
        gc.collect()
        return len(calls.opened) < len(opened)
