"""Results of calls, outputs and gradients, that are there behind their own backward.

A stage of a pipeline keeps the outputs of its micro-batches, and the gradients that it sends: they
are held until the step is over. An output that only the next part reads is gone with the backward
of its own; so is a gradient that goes to the part before, but for autograd's own reference, which
goes a little later. Where that part is not the next one to run, as the one that made what several
layers read, the gradient waits for it beside the backwards between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from ...measure.storage import storages
from ...torch_private.storage_refs import StorageWeakRef, is_gone, key_of, weakly

_LATER = 2
"""Backwards that must end while a result is there, before it counts as held."""
_FEW = 2**-10
"""Share of the results of a call up to which those that stay say nothing of others, as a loss."""


class Waiting(NamedTuple):
    """Results of a call whose backward is over, that wait as another half begins.

    Attributes
    ----------
    half
        The half: `i` for the forward of call i, ``~i`` for its backward.
    call
        The number of the call that has made them.
    num_bytes
        Their bytes, without those of what the half is given.
    """

    half: int
    call: int
    num_bytes: int


class HeldResults:
    """The results of calls in one step, in the order in which backwards end; holds none itself."""

    def __init__(self) -> None:
        self._results: dict[int, list[tuple[StorageWeakRef, int]]] = {}
        self._ended: list[int] = []
        # (half, call that is over) -> bytes of its results that are there, by their storages
        self._there: dict[tuple[int, int], dict[int, int]] = {}
        self._made_bytes: Counter[int] = Counter()

    def add(self, number: int, tensors: Iterable[torch.Tensor]) -> None:
        """Watch `tensors`, which call `number` has made."""
        rows = self._results.setdefault(number, [])
        made = [(weakly(tensor), tensor.untyped_storage().nbytes()) for tensor in tensors]
        self._made_bytes[number] += sum(size for _, size in made)
        rows += made

    def begin(self, half: int, given: Iterable[Any]) -> None:
        """A half begins, and is `given` these: the results of calls that are over wait by it."""
        if not self._ended:
            return
        own = {key_of(storage) for storage in storages(list(given))}
        for number in self._ended:
            rows = self._results[number]
            there = {row.cdata: size for row, size in rows if not is_gone(row)}
            waits = {key: size for key, size in there.items() if key not in own}
            if waits:
                self._there[half, number] = waits

    def end(self, number: int, gradients: Iterable[torch.Tensor]) -> None:
        """The backward of call `number` ends, and has made `gradients` of its inputs."""
        for earlier in self._ended[: -_LATER + 1 or None]:
            rows = self._results[earlier]
            rows[:] = [row for row in rows if not is_gone(row[0])]
        self._ended.append(number)
        self.add(number, gradients)

    def held_bytes(self, num_calls: int) -> tuple[int, ...]:
        """For each call, bytes of its results that are held to the end.

        The last ones were not seen to stay: they do if more than a few bytes of all others do.
        """
        held = self._held()
        return tuple(sum(size for _, size in held.get(i, ())) for i in range(num_calls))

    def waiting(self) -> tuple[Waiting, ...]:
        """The results that wait as halves begin, and are not held to the end."""
        held = {row.cdata for rows in self._held().values() for row, _ in rows}
        found = []
        for (half, number), there in self._there.items():
            num_bytes = sum(size for key, size in there.items() if key not in held)
            if num_bytes:
                found.append(Waiting(half, number, num_bytes))
        return tuple(found)

    def _held(self) -> dict[int, list[tuple[StorageWeakRef, int]]]:
        """The results that are held to the end, by their calls."""
        found = {number: self._results[number] for number in self._ended}
        seen, unseen = self._ended[:-_LATER], self._ended[-_LATER:]
        sizes = {number: sum(size for _, size in rows) for number, rows in found.items()}
        stay = [sizes[number] > _FEW * self._made_bytes[number] for number in seen]
        if not (stay and all(stay)):
            for number in unseen:
                del found[number]
        return found
