"""What the loop holds of the results of calls until its step is over: outputs, and gradients.

A stage of a pipeline keeps the outputs of its micro-batches, and the gradients that it sends. An
output that only the next part reads is gone with the backward of its own; so is a gradient that
goes to the part before, but for autograd's own reference, which goes a little later.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..torch_private.storage_refs import StorageWeakRef, is_gone, weakly

_LATER = 2
"""Backwards that must end while a result is there, before it counts as held."""


class HeldResults:
    """The results of calls in one step, in the order in which backwards end; holds none itself."""

    def __init__(self) -> None:
        self._results: dict[int, list[tuple[StorageWeakRef, int]]] = {}
        self._ended: list[int] = []

    def add(self, number: int, tensors: Iterable[torch.Tensor]) -> None:
        """Watch `tensors`, which call `number` has made."""
        rows = self._results.setdefault(number, [])
        rows += [(weakly(tensor), tensor.untyped_storage().nbytes()) for tensor in tensors]

    def end(self, number: int, gradients: Iterable[torch.Tensor]) -> None:
        """The backward of call `number` ends, and has made `gradients` of its inputs."""
        for earlier in self._ended[: -_LATER + 1 or None]:
            rows = self._results[earlier]
            rows[:] = [row for row in rows if not is_gone(row[0])]
        self._ended.append(number)
        self.add(number, gradients)

    def held_bytes(self, num_calls: int) -> tuple[int, ...]:
        """For each call, bytes of its results that are held to the end.

        The last ones were not seen to stay: they do if something of all earlier ones does.
        """
        found = [0] * num_calls
        seen, unseen = self._ended[:-_LATER], self._ended[-_LATER:]
        all_stay = bool(seen) and all(self._results[number] for number in seen)
        for number in [*seen, *(unseen if all_stay else ())]:
            found[number] = sum(size for _, size in self._results[number])
        return tuple(found)
