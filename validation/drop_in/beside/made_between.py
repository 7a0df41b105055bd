"""What the loop's code between forward and backward makes, and holds through the next forward.

As logits that the loop has resized, in a variable that the next step assigns anew. The CPU's
allocator tells what was made in a measured step; the tensors there are looked for as its record
ends, while no address can have become another's, and watched until the next step begins. On a CUDA
device they are requested bytes like any others.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress

import torch

from ...process_objects import objects_of
from ..parts.output_uses import Result, alive_bytes, results_of


class MadeBetween:
    """Of the steps of one model.

    Attributes
    ----------
    num_bytes
        The most that was held; steps that were not measured leave as much.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._watched: tuple[Result, ...] = ()
        self._found: tuple[Result, ...] = ()

    def learn(self, blocks: Mapping[int, int]) -> None:
        """A measured step has made these `blocks`, bytes by address, which are there now.

        Notes
        -----
        O(objects of the process).
        """
        self._watched = _tensors_at(blocks) if blocks else ()

    def look(self, counted: Callable[[], Iterable[int]]) -> tuple[Result, ...]:
        """The next step begins: what is there of them, and counts nowhere else.

        Parameters
        ----------
        counted
            Gives the addresses of what counts elsewhere.
        """
        watched, self._watched = self._watched, ()
        if all(it.is_gone for it in watched):
            return ()
        gc.collect()  # perhaps in a cycle, as of an error that was caught
        places = {*counted()}
        found = tuple(it for it in watched if not it.is_gone and it.place not in places)
        self._found, self.num_bytes = found, max(self.num_bytes, alive_bytes(found))
        return found

    @property
    def places(self) -> set[int]:
        """The addresses of what is watched until the next step begins."""
        return {it.place for it in self._watched if not it.is_gone}

    @property
    def unwatched_bytes(self) -> int:
        """Bytes that will be `unseen_bytes`, before `look` tells which of the watched count."""
        return max(0, self.num_bytes - alive_bytes(self._watched))

    @property
    def unseen_bytes(self) -> int:
        """Bytes of what the step before has left, beyond what is watched."""
        return self.num_bytes - alive_bytes(self._found)


def _tensors_at(places: Container[int]) -> tuple[Result, ...]:
    """The tensors of the process whose storages are at these addresses of the CPU."""
    found = []
    for one in objects_of(torch.Tensor):
        if one.layout is not torch.strided or not one.is_cpu:
            continue
        with suppress(RuntimeError, NotImplementedError):  # it stands for others in a transform
            if one.untyped_storage().data_ptr() in places:
                found.append(one)
    return results_of(found)
