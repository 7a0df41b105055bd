"""Buffers that code behind a graph may write before the backward of the graph runs.

As a queue of keys, which takes in the keys of a batch behind the graph that reads it. Dynamo hands
over one graph after the other, and what follows a break is not known before it has run. A backward
half must not read such a buffer: it would see what was written, and autograd refuses that.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ...capture.program import Program
from ...torch_private.storage_refs import version_of


class BufferVersion(NamedTuple):
    """A buffer at a place among the arguments, as a forward has met it."""

    place: int
    tensor: weakref.ref[torch.Tensor]
    version: int


class WrittenBuffers:
    """What is known of the buffers of a part that code behind it may write.

    Until a backward has come, all of them are taken to be written: what reads them runs once. Where
    no plan fits then, none is.

    Parameters
    ----------
    names
        The buffers: places among the arguments, with their names.

    Attributes
    ----------
    taken
        Places of those that are taken to be written.
    written
        Those of them that a step has written.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self.names, self.taken = names, frozenset(names)
        self.written: frozenset[int] = frozenset()
        self._changed: list[Callable[[], None]] = []

    def tell(self, changed: Callable[[], None]) -> None:
        """Call `changed` where other buffers are taken to be written from now on."""
        self._changed.append(changed)

    def met(self, values: Sequence[int], found: Mapping[int, Any]) -> tuple[BufferVersion, ...]:
        """The buffers as a forward meets them, whose arguments, by `values`, are `found`."""
        tensors = {i: found[values[i]] for i in self.names}
        return tuple(
            BufferVersion(i, weakref.ref(it), version_of(it))
            for i, it in tensors.items()
            if not it.is_inference()
        )

    @staticmethod
    def written_since(met: tuple[BufferVersion, ...]) -> frozenset[int]:
        """Places of the buffers that were written since they were `met`."""
        found = ((it.place, it.tensor(), it.version) for it in met)
        return frozenset(i for i, it, old in found if it is not None and version_of(it) != old)

    def hope(self) -> bool:
        """Take none to be written that no step has written; whether one was taken to be."""
        return self._take(self.written)

    def learn(self, written: frozenset[int]) -> bool:
        """A step has written these, and no others; whether others were taken to be written."""
        self.written |= written
        return self._take(self.written)

    def _take(self, places: frozenset[int]) -> bool:
        if places == self.taken:
            return False
        self.taken = places
        for changed in self._changed:
            changed()
        return True


def readers(program: Program, values: Collection[int]) -> frozenset[str]:
    """Names of the ops of the forward half that read the tensors of `values`, or views of them."""
    return frozenset(
        call.name
        for call in program.calls[: program.seed]
        if not call.is_view and program.reads_any(call, values)
    )
