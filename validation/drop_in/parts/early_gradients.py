"""Gradients that reach the loop while the rest of their graph's backward is still to run.

The node of a compiled graph gives all gradients at its end. What averages gradients over ranks
would then send nothing before. So parameters reach the graph through nodes of their own, one for
each bucket: the node of the graph runs the backward until the gradients of the first bucket are
made, and each of the others runs it on until its own are. The autograd engine passes on what one
node returns before it asks the next, as the node that was made last comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ...autocasts import Autocast
from ...first_order import first_order

Bucket = tuple[int, ...]
"""Positions, among the arguments of a graph, of tensors whose gradients come together."""

Places = Sequence[Sequence[Sequence[int]]]
"""For each piece of a backward, and each gradient in it, the positions that it is for."""


class EarlyGradients:
    """The backward of one call, which runs piece by piece.

    Parameters
    ----------
    buckets
        In the order in which their gradients are made; those of inputs are in the last.
    arguments
        The arguments of the call.
    bucket_bytes
        Bytes of gradients that come together at least.
    """

    def __init__(
        self, buckets: Sequence[Bucket], arguments: Sequence[Any], bucket_bytes: int
    ) -> None:
        self._buckets, self.bucket_bytes = tuple(buckets), bucket_bytes
        self._own: dict[int, torch.Tensor] = {}
        later = [at for bucket in buckets[1:] for at in bucket]
        self._forms = {
            at: (arguments[at].shape, arguments[at].dtype, arguments[at].device) for at in later
        }
        self._pieces: Iterator[dict[int, torch.Tensor]] | None = None
        self._made: dict[int, torch.Tensor] = {}

    def behind_nodes(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments, each tensor of a later bucket behind the node that brings its gradient."""
        found = list(arguments)
        for number in reversed(range(1, len(self._buckets))):
            bucket = self._buckets[number]
            mine = [found[at] for at in bucket]
            self._own.update(zip(bucket, mine, strict=True))
            aliases = _Later.apply(self, number, *mine)  # type: ignore[no-untyped-call]
            for at, alias in zip(bucket, aliases, strict=True):
                found[at] = alias
        return found

    def own(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments as the caller has given them; once, as nothing here may keep them."""
        own, self._own = self._own, {}
        return [own.get(at, argument) for at, argument in enumerate(arguments)]

    def begin(
        self, pieces: Iterator[dict[int, torch.Tensor]], num_arguments: int, *, at_once: bool
    ) -> list[Any]:
        """What the node of the graph returns: the first bucket, and no bytes for the others.

        Parameters
        ----------
        pieces
            Gradients by the positions of the arguments that they are for; taken out of each.
        at_once
            Whether the whole backward runs here.
        """
        self._pieces = pieces
        self._made.clear()  # of a backward that ran before, with its graph retained
        if at_once:
            self._run(lambda: True)
        found: list[Any] = [None] * num_arguments
        for at, (shape, dtype, device) in self._forms.items():
            found[at] = torch.zeros((), dtype=dtype, device=device).expand(shape)
        for at, gradient in zip(self._buckets[0], self.take(0), strict=True):
            found[at] = gradient
        return found

    def take(self, number: int) -> list[Any]:
        """The gradients of a bucket, which nothing else holds; runs the backward until they are."""
        bucket = self._buckets[number]
        is_last = number == len(self._buckets) - 1
        self._run(lambda: is_last or any(at not in self._made for at in bucket))
        return [self._made.pop(at, None) for at in bucket]

    def _run(self, is_wanted: Callable[[], bool]) -> None:
        assert self._pieces is not None
        while is_wanted():
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._made.update(piece)
            piece.clear()


class _Later(torch.autograd.Function):
    """Tensors whose gradients come after those of the graph's own node."""

    @staticmethod
    def forward(ctx: Any, early: EarlyGradients, number: int, *tensors: torch.Tensor) -> Any:
        ctx.early, ctx.number = early, number
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in tensors)

    @staticmethod
    @first_order
    def backward(ctx: Any, *_: Any) -> Any:
        with Autocast().entered():
            return (None, None, *ctx.early.take(ctx.number))


def pieces_of(
    lists: Iterator[list[torch.Tensor]],
    places: Places,
    ended: Callable[[list[torch.Tensor]], None],
) -> Iterator[dict[int, torch.Tensor]]:
    """The gradients of each list by the positions of the arguments that they are for.

    Parameters
    ----------
    lists
        What a backward in pieces yields; each list is emptied.
    ended
        Called with the last list, before its gradients are passed on.
    """
    for number, where in enumerate(places):
        given = next(lists)
        if number == len(places) - 1:
            ended(given)
        found = {at: one for one, ats in zip(given, where, strict=True) for at in ats}
        given.clear()
        yield found
