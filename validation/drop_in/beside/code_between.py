"""Code between the forward of a step and its backward that no measured step has run.

As a call of the plain model (`model(x)` where the loop has what `torch.compile` gave), or of
`model.forward`, in some steps alone. A CPU's allocator tells nothing of it. But autograd numbers
its nodes, so that it costs nothing to see that a step has made more of them than any that was
measured. Then the graphs behind the tensors of the process tell what it may hold.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

from ...torch_private.autograd_nodes import (
    current_node_number,
    is_of_graph,
    made_bytes,
    sequence_number,
)
from .held_in_front import nodes_behind, tensors_now

_GROWTH = 1.25
"""By how much more nodes there must be to be looked at again, where they grow in each step."""


class HeldBetween(NamedTuple):
    """What nodes outside of graphs hold, by the sizes of their results.

    Attributes
    ----------
    all_bytes
        As the first backward of a graph begins.
    front_bytes
        Of nodes that were made before the graph, and go behind its backward.
    """

    all_bytes: int
    front_bytes: int


class CodeBetween:
    """Of the steps of one model on a CPU."""

    def __init__(self) -> None:
        self._start = -1
        self._known: dict[Hashable, HeldBetween] = {}  # of measured steps
        self._most: dict[Hashable, float] = {}  # nodes up to which nothing is looked at

    def step_begins(self) -> None:
        """The first forward of a step begins."""
        self._start = sequence_number()

    def look(self, kind: Hashable, *, is_measured: bool) -> tuple[HeldBetween, HeldBetween] | None:
        """The first backward of a graph begins: what there is, and what measured steps had.

        ``None`` where the step has made no more nodes of autograd than steps of its `kind` that
        were measured. O(1); else O(objects of the process).
        """
        num_nodes = sequence_number() - self._start
        if num_nodes <= self._most.get(kind, -1) or not (is_measured or kind in self._known):
            return None
        found = _held_by(_made_since(self._start), current_node_number())
        if is_measured:
            known = self._known.get(kind, found)
            self._known[kind] = HeldBetween(*map(max, found, known))
            self._most[kind] = num_nodes
            return None
        self._most[kind] = num_nodes * _GROWTH
        return found, self._known[kind]


def _made_since(start: int) -> list[Any]:
    heads = (it.grad_fn for it in tensors_now() if it.grad_fn is not None)
    return [it for it in nodes_behind(heads) if it._sequence_nr() >= start]


def _held_by(nodes: Iterable[Any], number: int) -> HeldBetween:
    found = [(it._sequence_nr(), made_bytes(it)) for it in nodes if not is_of_graph(it)]
    front = sum(size for at, size in found if at < number)
    return HeldBetween(sum(size for _, size in found), front)
