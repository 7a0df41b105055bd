"""Ops in place whose form with a new result gives that other strides, in a trace.

A trace writes ``x.masked_fill_(mask, 0)`` as ``masked_fill``, whose result lies in the order of
dimensions, whatever the strides of ``x`` are. Formulas of backwards call it in place, as that of a
norm or of distances. The sums and products behind would have another order than in eager mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

_make: Any = torch.library.Library
_library = _make("schedsim", "FRAGMENT")
_library.define("masked_fill_as_it_lies(Tensor self, Tensor mask, Scalar value) -> Tensor")


def _filled(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    return x.clone(memory_format=torch.preserve_format).masked_fill_(mask, value)


def _filled_fake(x: Tensor, _mask: Tensor, _value: Any) -> Tensor:
    return torch.empty_like(x)


_library.impl("masked_fill_as_it_lies", _filled, "CompositeExplicitAutograd")
torch.library.register_fake("schedsim::masked_fill_as_it_lies", _filled_fake, lib=_library)

AS_IT_LIES = {torch.ops.aten.masked_fill_.Scalar: torch.ops.schedsim.masked_fill_as_it_lies.default}
"""Ops in place -> ops whose new result has the strides of the input."""


@contextmanager
def strides_kept_in_place() -> Iterator[None]:
    """Within a trace, write these ops in place as ones that keep the strides of what they change.

    Where these are the order of dimensions, or not those of a new tensor, they stay as they are.
    """
    own = FunctionalTensorMode.__torch_dispatch__

    def dispatch(
        mode: Any, op: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        changed = args[0] if op in AS_IT_LIES else None
        if not isinstance(changed, FunctionalTensor) or kwargs or not _lies_otherwise(changed):
            return own(mode, op, types, args, kwargs)
        found = own(mode, AS_IT_LIES[op], types, args, kwargs)
        changed.replace_(torch._from_functional_tensor(found.elem))
        changed.commit_update()
        changed.sync()
        return changed

    kind: Any = FunctionalTensorMode
    kind.__torch_dispatch__ = dispatch
    try:
        yield
    finally:
        kind.__torch_dispatch__ = own


def _lies_otherwise(tensor: Tensor) -> bool:
    """Whether `tensor` fills its memory in another order than that of its dimensions."""
    if tensor.is_contiguous():
        return False
    expected: Any = 1
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True
