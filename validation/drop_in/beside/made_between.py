"""What the loop's code between forward and backward makes, and holds through the next forward.

As logits that the loop has resized, in a variable that the next step assigns anew. The CPU's
allocator tells what was made in a measured step; as the next one begins, the tensors that are there
still are looked for. On a CUDA device they are requested bytes like any others.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress

import torch

from ...measure.allocator import NO_BLOCKS
from ..parts.output_uses import Result, alive_bytes, results_of


class MadeBetween:
    """Of the steps of one model.

    Attributes
    ----------
    num_bytes
        The most that was found; steps that were not measured leave as much.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._waiting: Mapping[int, int] = NO_BLOCKS

    def learn(self, blocks: Mapping[int, int]) -> None:
        """A measured step has made these `blocks`, bytes by address, and holds them at its end."""
        self._waiting = blocks

    def look(self, counted: Callable[[], Iterable[int]]) -> tuple[Result, ...]:
        """The next step begins: what is there of them, and counts nowhere else.

        Parameters
        ----------
        counted
            Gives the addresses of what counts elsewhere.

        Notes
        -----
        O(objects of the process), and only behind a step that was measured.
        """
        if not self._waiting:
            return ()
        places, self._waiting = self._waiting.keys() - {*counted()}, NO_BLOCKS
        found = _tensors_at(places)
        if found:  # perhaps in a cycle, as of an error that was caught
            del found
            gc.collect()
            found = _tensors_at(places)
        self.num_bytes = max(self.num_bytes, alive_bytes(found))
        return found


def _tensors_at(places: Container[int]) -> tuple[Result, ...]:
    """The tensors of the process whose storages are at these addresses of the CPU."""
    found = []
    for one in gc.get_objects():
        if type(one) is not torch.Tensor or one.layout is not torch.strided or not one.is_cpu:
            continue
        with suppress(RuntimeError, NotImplementedError):  # it stands for others in a transform
            if one.untyped_storage().data_ptr() in places:
                found.append(one)
    return results_of(found)
