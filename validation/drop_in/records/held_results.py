"""What the loop holds of the results of calls until its step is over: outputs, and gradients.

A stage of a pipeline keeps the outputs of its micro-batches, and the gradients that it sends. An
output that only the next part reads is gone with the backward of its own; so is a gradient that
goes to the part before, but for autograd's own reference, which goes a little later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch

from ...torch_private.storage_refs import StorageWeakRef, is_gone, weakly

_LATER = 2
"""Backwards that must end while a result is there, before it counts as held."""
_FEW = 2**-10
"""Share of the results of a call up to which those that stay say nothing of others, as a loss."""


class HeldResults:
    """The results of calls in one step, in the order in which backwards end; holds none itself."""

    def __init__(self) -> None:
        self._results: dict[int, list[tuple[StorageWeakRef, int]]] = {}
        self._ended: list[int] = []
        self._made_bytes: Counter[int] = Counter()

    def add(self, number: int, tensors: Iterable[torch.Tensor]) -> None:
        """Watch `tensors`, which call `number` has made."""
        rows = self._results.setdefault(number, [])
        made = [(weakly(tensor), tensor.untyped_storage().nbytes()) for tensor in tensors]
        self._made_bytes[number] += sum(size for _, size in made)
        rows += made

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
        found = [0] * num_calls
        for number in self._ended:
            found[number] = sum(size for _, size in self._results[number])
        seen, unseen = self._ended[:-_LATER], self._ended[-_LATER:]
        stay = [found[number] > _FEW * self._made_bytes[number] for number in seen]
        if not (stay and all(stay)):
            for number in unseen:
                found[number] = 0
        return tuple(found)
