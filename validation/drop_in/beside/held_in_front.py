"""What the loop holds in front of a step: one list of all that no other count names.

As a teacher's features, what hooks have kept, batches that were fetched ahead, an average that was
made meanwhile, or the graph of a gradient penalty. On a CUDA device these are requested bytes like
any others. A CPU's allocator tells nothing of what is there, so the tensors of the process are gone
through: those that Python holds, and those that graphs of autograd keep for their backward. What
was there when the model got its budget is none of this: other models, or a data set, that the
budget may not be meant for.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch

from ...measure.storage import bytes_by_place
from ...process_objects import objects_of
from ...torch_private.autograd_nodes import is_of_graph, saved_by, sequence_number
from ...torch_private.storage_refs import (
    StorageWeakRef,
    is_gone,
    key_of,
    storage_weakly,
    strided_parts,
)
from .resident_bytes import room_for

_SURE_LOOKS, _FIRST_LOOKS, _MOST_LOOKS = 2, 3, 16
"""Steps before which is looked in any case, and looks where autograd has made something.

The first are those of all, and those behind one that was measured; then those steps are looked at
whose numbers are powers of two. Of the last two numbers, the larger is for steps to be measured.
"""
_GROWTH = 1.25
"""By how much more nodes there must be to be looked for again, where they grow in each step."""
_MOST_NODES = 100_000
_PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Tensors whose bytes are theirs, and not those of a trace without values, or of other ranks."""


class HeldInFront:
    """Of the steps of one model on a CPU; the tensors that are there by now are none of them.

    Parameters
    ----------
    named_bytes
        Bytes that the loop has named (``extra_bytes``). They stand for what was there before, and
        what they are more than that is part of what is found.

    Attributes
    ----------
    uncounted_bytes
        Bytes of parameters that were there before and are there still, beyond the named ones; of
        the last look. Other tensors may be a data set.
    """

    def __init__(self, named_bytes: int) -> None:
        self._named_bytes, self.uncounted_bytes = named_bytes, 0
        self._before = {key_of(it): storage_weakly(it) for it in held_by_python(tensors_now())}
        self._num_steps = self._num_looks = self._num_known = 0
        self._num_nodes = -1  # of autograd as the last backward of a part ended
        self._most_nodes = 0.0  # made since then, up to which nothing is looked for
        self._is_ignored = False
        self._found: dict[int | None, int] = {}  # with room for a few more
        self._seen: dict[int | None, int] = {}  # as it was
        self._left: dict[int | None, int] = {}

    def backward_ends(self) -> None:
        """A backward of a part has ended."""
        self._num_nodes = sequence_number()

    # -- what is there ----------------------------------------------------------------------------

    def look(
        self,
        last: int | None,
        counted: Callable[[], Collection[int]],
        few_bytes: int,
        *,
        is_measured: bool,
        is_known: bool = True,
        but_bytes: int = 0,
        dropped: Collection[int] = (),
    ) -> int:
        """A step begins: look, if there may be something new; by how much it is more than counted.

        Parameters
        ----------
        last
            The part with which the step before began: what a step leaves differs by its kind.
        counted
            Gives the addresses of tensors that count elsewhere.
        few_bytes
            Bytes up to which they are a few, as of losses that the loop collects: these have room.
        is_measured
            Whether the step is to be measured, as are all under a profiler of the loop's own.
        is_known
            Whether a step was measured, which tells what the next one finds of it for a moment, as
            its loss. Before, graphs count alone.
        but_bytes
            Bytes among what is found that count elsewhere, at addresses that nobody knows.
        dropped
            Keys of storages that have counted elsewhere, and do not any more: no data set.
        """
        self._num_steps += 1
        self._num_known += is_known
        wanted = min(self._num_steps, self._num_known or self._num_steps) <= _SURE_LOOKS
        wanted = wanted or not self._num_steps & (self._num_steps - 1)
        most = _MOST_LOOKS if is_measured else _FIRST_LOOKS
        # Autograd has made nodes since the last backward: of a graph that waits for its own.
        num_nodes = sequence_number() - self._num_nodes
        wanted = wanted or (num_nodes != 0 and self._num_looks < most)
        # As a forward of the plain model that some steps alone have in front of their own.
        wanted = wanted or num_nodes > self._most_nodes
        for key in dropped:
            self._before.pop(key, None)
        if self._is_ignored or not (wanted or dropped):
            return 0
        self._num_looks += 1
        if self._num_nodes >= 0:
            self._most_nodes = max(self._most_nodes, num_nodes * _GROWTH)
        found = max(0, self._bytes_now(counted(), is_known) - but_bytes)
        planned = self.bytes_after(last)
        if found > planned:  # perhaps in a cycle, as of an error that was caught
            gc.collect()
            found = max(0, self._bytes_now(counted(), is_known) - but_bytes)
        # Losses that the loop collects are more in each step: no step is to be planned for them.
        is_few = found <= few_bytes
        room = room_for(found) if is_few else found + few_bytes
        if found > planned or last not in self._found:
            self._found[last] = max(room, self._found.get(last, 0))
        self._seen[last] = max(found, self._seen.get(last, 0))
        return max(0, (room if is_few else found) - planned)

    def _bytes_now(self, counted: Collection[int], is_known: bool) -> int:
        """Bytes that are there, and neither counted nor named."""
        self._before = {it: ref for it, ref in self._before.items() if not is_gone(ref)}
        if not is_known:
            graphs, _ = bytes_of_graphs(tensors_now())
            return sum(size for place, size in graphs.items() if place not in counted)
        there_before, parameters, made = bytes_in_front(counted, self._before)
        self.uncounted_bytes = max(0, parameters - self._named_bytes)
        return max(0, made - max(0, self._named_bytes - there_before))

    def leaves(self, first: int, num_bytes: int) -> None:
        """By the record of a step that began with part `first`, it has left so many bytes."""
        if not self._is_ignored:
            self._left[first] = max(num_bytes, self._left.get(first, 0))

    def bytes_after(self, last: int | None) -> int:
        """Bytes to plan for in front of a step, where the one before began with part `last`.

        The most so far, with room for a few more; behind a kind of step that was not seen, the most
        of all.
        """
        return max(_of_kind(self._found, last), _of_kind(self._left, last))

    def seen_after(self, last: int | None) -> int:
        """The most of these bytes that were there, without the room: lines tell of no other."""
        return max(_of_kind(self._seen, last), _of_kind(self._left, last))

    @property
    def most_bytes(self) -> int:
        """The most in front of any step."""
        return max([*self._found.values(), *self._left.values()], default=0)

    def ignore(self) -> None:
        """Count nothing from now on: it is no part of the budget."""
        self._found, self._seen, self._left, self._is_ignored = {}, {}, {}, True


def _of_kind(found: Mapping[int | None, int], kind: int | None) -> int:
    return found[kind] if kind in found else max(found.values(), default=0)


def bytes_in_front(
    counted: Collection[int] = (), before: Mapping[int, StorageWeakRef] | None = None
) -> tuple[int, int, int]:
    """Bytes of the process that count nowhere: of what was there `before`, of the parameters among
    it, and of all else.

    Parameters
    ----------
    counted
        Addresses of tensors that count elsewhere.
    before
        By the keys of their storages.

    Notes
    -----
    O(objects of the process): 0.8 s for 3,000,000 of them. Nothing is unpacked, and no hook runs.
    """
    old: dict[int, int] = {}
    tensors = tensors_now()
    graphs, parts = bytes_of_graphs(tensors)
    new = {it: size for it, size in graphs.items() if it not in counted}
    for storage in held_by_python(tensors):
        place = storage.data_ptr()
        if place not in counted and place not in parts:
            (old if before and key_of(storage) in before else new)[place] = storage.nbytes()
    made = sum(size for place, size in new.items() if place not in old)
    trained = [it for it in tensors if type(it) is torch.nn.Parameter]
    places = {storage.data_ptr() for storage in held_by_python(trained)}
    return sum(old.values()), sum(old[it] for it in places if it in old), made


def tensors_now() -> list[torch.Tensor]:
    """All tensors that Python holds, whose bytes are theirs. O(objects of the process)."""
    return objects_of(*_PLAIN)


def held_by_python(tensors: Iterable[torch.Tensor]) -> Iterator[torch.UntypedStorage]:
    """The storages on the CPU of `tensors`; a shared one comes several times. O(tensors)."""
    for tensor in tensors:
        with suppress(RuntimeError, NotImplementedError):  # it stands for others in a transform
            if tensor.is_cpu:
                for part in strided_parts(tensor):
                    storage = part.untyped_storage()
                    if storage.data_ptr():  # else of the sizes alone, as where a gradient was freed
                        yield storage


def bytes_of_graphs(tensors: Iterable[torch.Tensor]) -> tuple[dict[int, int], dict[int, int]]:
    """Bytes, by address, that graphs behind `tensors` hold for their backward.

    Returns
    -------
    dict, dict
        Outside of parts, and within: parts keep what their plans say.

    Notes
    -----
    O(tensors + nodes of their graphs).
    """
    heads = [it for it in tensors if type(it) is torch.Tensor]
    outside: dict[int, int] = {}
    within: dict[int, int] = {}
    for node in nodes_behind(it.grad_fn for it in heads if it.grad_fn is not None):
        found = bytes_by_place([it for it in saved_by(node) if type(it) in _PLAIN])
        (within if is_of_graph(node) else outside).update(found)
    return outside, within


def nodes_behind(heads: Iterable[Any]) -> list[Any]:
    """The nodes of autograd behind `heads`."""
    waiting = list(heads)
    found: dict[Any, None] = dict.fromkeys(waiting)
    while waiting and len(found) < _MOST_NODES:
        node = waiting.pop()
        for source, _ in node.next_functions:
            if source is not None and source not in found:
                found[source] = None
                waiting.append(source)
    return list(found)
