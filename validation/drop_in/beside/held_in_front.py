"""Graphs of autograd that the loop has made before a step, and that wait for their backward.

As a gradient penalty that stands before the critic's forward. On a CUDA device they are requested
bytes like any others; a CPU's allocator tells nothing of what is there.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Container, Iterable
from typing import Any

import torch

from ...measure.storage import bytes_by_place
from ...torch_private.autograd_nodes import is_of_graph, saved_by, sequence_number

_SURE_LOOKS, _FIRST_LOOKS, _MOST_LOOKS = 2, 3, 16
"""Looks in any case, of which the second finds what a step leaves; in all first steps; in all."""
_MOST_NODES = 100_000
_PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Tensors whose bytes are theirs, and not those of a trace without values, or of other ranks."""


class GraphsBeside:
    """Looks for such graphs as steps of one model begin.

    Attributes
    ----------
    num_bytes
        The most that were seen.
    """

    def __init__(self) -> None:
        self.num_bytes = self._num_looks = 0
        self._num_nodes = -1  # of autograd as the last backward of a part ended
        self._is_ignored = False

    def backward_ends(self) -> None:
        """A backward of a part has ended."""
        self._num_nodes = sequence_number()

    def look(self, counted: Callable[[], Container[int]], *, is_measured: bool) -> None:
        """A step begins: look, in first steps and, where there may be something new, in others.

        There is nothing new where autograd has made no node since the last backward, unless the
        loop has held it since before.

        Parameters
        ----------
        counted
            Gives the addresses of tensors that count elsewhere.
        is_measured
            Whether the step is to be measured, as are all under a profiler of the loop's own.
        """
        most = _MOST_LOOKS if is_measured else _FIRST_LOOKS
        is_new = self._num_looks < _SURE_LOOKS or self._num_nodes != sequence_number()
        if self._is_ignored or self._num_looks >= most or not is_new:
            return
        self._num_looks += 1
        found = bytes_of_graphs(counted())
        if found:  # perhaps in a cycle, as of an error that was caught
            gc.collect()
            found = bytes_of_graphs(counted())
        self.num_bytes = max(self.num_bytes, found)

    def ignore(self) -> None:
        """Count none from now on."""
        self.num_bytes, self._is_ignored = 0, True


def bytes_of_graphs(counted: Container[int]) -> int:
    """Bytes that graphs of the process hold for their backward, outside of parts with a plan.

    Parameters
    ----------
    counted
        Addresses of tensors that count elsewhere.

    Notes
    -----
    O(objects of the process): 0.1 s for 370,000 of them. Nothing is unpacked, and no hook runs.
    """
    heads = [it for it in gc.get_objects() if type(it) is torch.Tensor]
    held: dict[int, int] = {}
    for node in _nodes(it.grad_fn for it in heads if it.grad_fn is not None):
        held.update(bytes_by_place([it for it in saved_by(node) if type(it) in _PLAIN]))
    return sum(size for place, size in held.items() if place not in counted)


def _nodes(heads: Iterable[Any]) -> list[Any]:
    """The nodes behind `heads`; those of compiled graphs keep what their plans say."""
    waiting = list(heads)
    found: dict[Any, None] = dict.fromkeys(waiting)
    while waiting and len(found) < _MOST_NODES:
        node = waiting.pop()
        for source, _ in node.next_functions:
            if source is not None and source not in found:
                found[source] = None
                waiting.append(source)
    return [node for node in found if not is_of_graph(node)]
