"""Logits that are never computed as a whole: the object that a loss function gets instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from schedsim.errors import UnsupportedError

from .chunked_loss import chunked_cross_entropy


class Logits:
    """Stands for ``linear(hidden, weight, bias)``, of which a loss computes the cross entropy.

    It can be cast to float32, flattened over all dimensions but the classes, sliced along
    dimensions other than the classes, and passed to `torch.nn.functional.cross_entropy`, which is
    then computed in chunks. Any other use by a loss is refused.
    """

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        num_chunks: int,
        in_float32: bool = False,
    ) -> None:
        self.hidden, self.weight, self.bias = hidden, weight, bias
        self.num_chunks, self.in_float32 = num_chunks, in_float32

    def _with(self, hidden: Tensor, in_float32: bool | None = None) -> Logits:
        wide = self.in_float32 if in_float32 is None else in_float32
        return Logits(hidden, self.weight, self.bias, self.num_chunks, wide)

    # -- what a loss asks of a tensor ---------------------------------------------------------

    @property
    def shape(self) -> torch.Size:
        """The shape that the logits would have."""
        return torch.Size((*self.hidden.shape[:-1], self.weight.shape[0]))

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.hidden.ndim

    @property
    def device(self) -> torch.device:
        """The device that the logits would be on."""
        return self.hidden.device

    @property
    def dtype(self) -> torch.dtype:
        """The number format that the logits would have."""
        return torch.float32 if self.in_float32 else self.hidden.dtype

    def dim(self) -> int:
        """Number of dimensions."""
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        """The shape that the logits would have, or one entry of it."""
        return self.shape if dim is None else self.shape[dim]

    def float(self) -> Logits:
        """Cast to float32."""
        return self._with(self.hidden, True)

    def to(self, *arguments: Any, **keywords: Any) -> Logits:
        """Cast to float32, or move to the device where the logits already are."""
        given = [*arguments, *keywords.values()]
        if torch.float32 in given:
            return self.float()
        if all(item in (self.dtype, self.device, str(self.device)) for item in given):
            return self
        raise _refused(f"casts the logits to {given}")

    def contiguous(self) -> Logits:
        """The object itself."""
        return self

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Logits:
        """The logits with dimensions before that of the classes joined."""
        if end_dim % self.ndim == self.ndim - 1:
            raise _refused("flattens the classes")
        return self._with(self.hidden.flatten(start_dim, end_dim))

    def view(self, *shape: Any) -> Logits:
        """The logits in another shape, with the classes last."""
        sizes = list(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else list(shape)
        classes, width = self.weight.shape
        if sizes[-1] == -1 and -1 not in sizes[:-1]:
            sizes[-1] = classes
        if sizes[-1] != classes:
            raise _refused("views the logits with the classes not last")
        return self._with(self.hidden.reshape(*sizes[:-1], width))

    reshape = view

    def __getitem__(self, index: Any) -> Logits:
        items = list(index) if isinstance(index, tuple) else [index]
        named = sum(item is not None and item is not Ellipsis for item in items)
        at = next((i for i, item in enumerate(items) if item is Ellipsis), None)
        if at is not None:
            items[at : at + 1] = [slice(None)] * (self.ndim - named)
            named = self.ndim
        last = items[-1]
        if named >= self.ndim and not (isinstance(last, slice) and last == slice(None)):
            raise _refused("cuts the classes")
        return self._with(self.hidden[index])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _refused(f"uses Tensor.{name} of the logits")

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute cross entropy in chunks; refuse everything else."""
        if function is functional.cross_entropy:
            return _cross_entropy(*args, **(kwargs or {}))
        if function is torch.flatten:
            return args[0].flatten(*args[1:], **(kwargs or {}))
        if function is torch.reshape:
            return args[0].view(*args[1:], **(kwargs or {}))
        raise _refused(f"calls {getattr(function, '__name__', function)} on the logits")


def _cross_entropy(
    logits: Any,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    if not isinstance(logits, Logits):
        raise _refused("has the logits where targets go")
    if weight is not None or label_smoothing or size_average is not None or reduce is not None:
        raise _refused("weighs or smoothes the classes")
    if target.is_floating_point() or logits.ndim != 2 or target.ndim != 1:
        raise _refused(
            f"has logits of {logits.ndim} dimensions and targets of {target.ndim}, "
            "which are not (tokens, classes) and class numbers"
        )
    return chunked_cross_entropy(
        logits.hidden,
        logits.weight,
        logits.bias,
        target,
        num_chunks=logits.num_chunks,
        ignore_index=ignore_index,
        reduction=reduction,
        in_float32=logits.in_float32,
    )


def _refused(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"the head cannot be chunked: the loss {what}",
        hint="a cross entropy of the logits, with the classes last, can be; or leave 'head' out",
    )


class ChunkedLoss(nn.Module):
    """A loss of logits that gets the hidden states before the last projection instead."""

    def __init__(self, inner_loss: Callable[..., Tensor], head: nn.Linear, num_chunks: int) -> None:
        super().__init__()
        self.inner_loss, self.num_chunks = inner_loss, num_chunks
        self.head = head

    def forward(self, hidden: Tensor, *extra: Any) -> Tensor:
        """The loss from the hidden states."""
        logits = Logits(hidden, self.head.weight, self.head.bias, self.num_chunks)
        loss = self.inner_loss(logits, *extra)
        if not isinstance(loss, Tensor):
            raise _refused(f"gives a {type(loss).__name__}")
        return loss
