"""Graphs that write into their arguments, some of which may come to share memory later.

As a buffer that becomes a view of another one, or a batch that is a part of the memory which the
forward writes. AOTAutograd makes of a graph a function that returns its changes, for arguments that
share memory as they did in the trace, and copies each change back by itself. Dynamo guards the
objects, and not their memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from ...torch_private.storage_refs import key_of, strided_parts

_PLAIN = (torch.Tensor, torch.nn.Parameter)
Places = frozenset[tuple[int, int]]
"""Pairs of places of arguments, the first of which is written."""


class SharedMemory:
    """What Dynamo calls for one graph: where its arguments share other memory, it runs as it is.

    Parameters
    ----------
    call
        What runs the graph by its schedules.
    plain
        The graph as it is.
    written
        Places of the arguments that it writes; ``None`` where that is not known.
    say
        Says that the arguments at two places share memory.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        plain: Callable[..., Any],
        written: Collection[int] | None,
        say: Callable[[int, int], None],
    ) -> None:
        self._call, self._plain, self._written, self._say = call, plain, written, say
        self._traced: Places | None = None  # of the first call, which follows the trace

    def __call__(self, *arguments: Any) -> Any:
        """Call the graph."""
        found = sharing(arguments, self._written)
        if self._traced is None:
            self._traced = found
        if found == self._traced:
            return self._call(*arguments)
        self._say(*min(found ^ self._traced))
        return self._plain(*arguments)


def sharing(arguments: Sequence[Any], written: Collection[int] | None = None) -> Places:
    """Places of `written` arguments, each with that of another one which has bytes in its memory.

    Notes
    -----
    O(arguments) where no two are in one storage, as in nearly every step.

    Examples
    --------
    >>> x = torch.zeros(8)
    >>> sorted(sharing([x[:4], x[4:], x[3:5]], [1])), sorted(sharing([x, torch.zeros(8)]))
    ([(1, 2)], [])
    """
    keys = [
        key_of(parts[0].untyped_storage())
        if type(it) in _PLAIN and len(parts := strided_parts(it)) == 1
        else None
        for it in arguments
    ]
    known = [key for key in keys if key is not None]
    if len(set(known)) == len(known):
        return frozenset()
    places = range(len(keys)) if written is None else written
    return frozenset(
        (i, k)
        for i in places
        if keys[i] is not None
        for k, key in enumerate(keys)
        if k != i and key == keys[i] and _overlap(arguments[i], arguments[k])
    )


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the bytes from the first to the last entry of both have some in common."""
    (begin, end), (start, stop) = _span(one), _span(other)
    return begin < stop and start < end


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    size = tensor.element_size()
    begin = int(tensor.storage_offset()) * size
    if not tensor.numel():
        return begin, begin
    entries = sum((int(n) - 1) * int(s) for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (entries + 1) * size
