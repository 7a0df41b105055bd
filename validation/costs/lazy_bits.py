"""Views that PyTorch conjugates or negates later: a kernel that cannot read them makes a copy."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..capture.program import Program, refs
from ..torch_private import lazy_views


class LazyBits(NamedTuple):
    """What a kernel has yet to do with each element that it reads."""

    conjugates: bool = False
    negates: bool = False

    def __str__(self) -> str:
        return "conj" * self.conjugates + "neg" * self.negates

    def set_on(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` as a view with these bits."""
        tensor = lazy_views.conjugated(tensor) if self.conjugates else tensor
        return lazy_views.negated(tensor) if self.negates else tensor


def lazy_bits(program: Program, value: int) -> LazyBits:
    """The bits of `value`, by the views that it was made by. O(views on the way)."""
    conjugates = negates = False
    maker = program.values[value].call
    while maker >= 0 and program.calls[maker].is_view:
        call = program.calls[maker]
        conjugates ^= lazy_views.conjugates(call.target)
        negates ^= lazy_views.negates(call.target)
        source = next(iter(refs((call.args, call.kwargs))), None)
        maker = -1 if source is None else program.values[source].call
    return LazyBits(conjugates, negates)
