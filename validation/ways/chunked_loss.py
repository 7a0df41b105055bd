"""Projection to a vocabulary and cross entropy, chunk by chunk of the tokens, as one op.

The logits of a language model, ``(tokens, vocabulary)``, are often the largest tensor of its step.
Here only the logits of one chunk exist at a time: the same pass computes their loss and the
gradients of the hidden states and of the weight, so that nothing is computed twice. The backward
only multiplies by the gradient that the loss is given.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from schedsim.errors import UnsupportedError

from ..measure.storage import COMPOSITES

aten = torch.ops.aten
_REDUCTIONS = {"mean": 1, "sum": 2}


def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    *,
    num_chunks: int,
    ignore_index: int = -100,
    reduction: str = "mean",
    in_float32: bool = True,
) -> Tensor:
    """``cross_entropy(linear(hidden, weight, bias), target)`` without the logits of all tokens.

    Parameters
    ----------
    hidden
        ``(tokens, width)``.
    weight, bias
        ``(vocabulary, width)`` and ``(vocabulary,)`` or ``None``.
    target
        ``(tokens,)`` int64.
    num_chunks
        Number of parts of the tokens.
    in_float32
        Whether the logits are cast to float32 first, as models in a shorter format do.

    Returns
    -------
    Tensor
        The scalar loss. With one chunk, loss and gradients equal those of the two functions to the
        bit. With more chunks, rows go through the matrix product in smaller groups, which most
        libraries compute to the same bits (though none promises it), so that loss and gradient of
        `hidden` stay equal; the gradient of `weight` is a sum over tokens in another order, and
        equal within rounding.

    Notes
    -----
    Computes what the two functions compute, forward and backward, once each. Besides the results it
    needs memory for the logits of a chunk, twice. Gradients in a shorter format are summed in
    float32. The idea of computing the gradient in the forward pass is from Liger Kernel (Hsu et al.
    2024, arXiv 2410.10989, section 3.2).

    Examples
    --------
    >>> hidden, weight = torch.randn(6, 4), torch.randn(9, 4, requires_grad=True)
    >>> target = torch.tensor([0, 8, 3, -100, 1, 2])
    >>> loss = chunked_cross_entropy(hidden, weight, None, target, num_chunks=3)
    >>> plain = torch.nn.functional.cross_entropy(hidden @ weight.T, target)
    >>> bool(torch.isclose(loss, plain))
    True
    """
    if reduction not in _REDUCTIONS:
        raise UnsupportedError(
            f"a cross entropy with reduction={reduction!r} keeps a number per token",
            hint="take the mean or the sum, or leave chunk= out",
        )
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
        in_float32 = True  # cross entropy itself casts in this case
    rows = -(-hidden.shape[0] // max(1, num_chunks))
    settings = (max(1, rows), ignore_index, _REDUCTIONS[reduction], in_float32)
    loss: Tensor = _op(hidden, weight, bias, target, *settings)[0]
    return loss


@torch.library.custom_op("schedsim::chunked_cross_entropy", mutates_args=())
def _op(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    chunk_rows: int,
    ignore_index: int,
    reduction: int,
    in_float32: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Loss, and gradients of hidden, weight and bias (empty without one)."""
    with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
        return _chunks(
            hidden, weight, bias, target, chunk_rows, ignore_index, reduction, in_float32
        )


def _chunks(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    chunk_rows: int,
    ignore_index: int,
    reduction: int,
    in_float32: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    wide = torch.float32 if in_float32 else hidden.dtype
    sums = torch.promote_types(hidden.dtype, torch.float32)
    counted = target != ignore_index
    index = torch.where(counted, target, 0)
    # 1 / N for each token that counts, 0 for the others: the gradient that the loss gives a row.
    share = counted.to(wide)
    if reduction == _REDUCTIONS["mean"]:
        share = share / counted.sum().to(wide)
    picked = torch.empty(hidden.shape[0], 1, dtype=wide, device=hidden.device)
    grad_hidden = torch.empty_like(hidden)
    grad_weight = torch.zeros_like(weight, dtype=sums)
    grad_bias = torch.zeros_like(bias if bias is not None else weight[:0, 0], dtype=sums)
    for start in range(0, hidden.shape[0], chunk_rows):
        rows = slice(start, min(start + chunk_rows, hidden.shape[0]))
        part, at = hidden[rows], index[rows].unsqueeze(1)
        logits = part @ weight.t() if bias is None else torch.addmm(bias, part, weight.t())
        log_p = torch.log_softmax(logits.to(wide), 1)
        del logits
        picked[rows] = log_p.gather(1, at)
        # The kernels of autograd are used, so that gradients equal the plain ones to the bit.
        scores = torch.zeros_like(log_p).scatter_(1, at, -share[rows].unsqueeze(1))
        scores = aten._log_softmax_backward_data(scores, log_p, 1, wide)
        scores = scores.to(hidden.dtype)
        torch.mm(scores, weight, out=grad_hidden[rows])
        if sums == hidden.dtype:
            grad_weight.addmm_(scores.t(), part)
        else:
            grad_weight += scores.t() @ part
        if bias is not None:
            grad_bias += scores.sum(0, dtype=sums)
        del log_p, scores
    zero = torch.where(counted, 0, ignore_index)
    loss, _ = aten.nll_loss_forward(picked, zero, None, reduction, ignore_index)
    return loss, grad_hidden, grad_weight.to(weight.dtype), grad_bias.to(weight.dtype)


@_op.register_fake
def _(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    chunk_rows: int,
    ignore_index: int,
    reduction: int,
    in_float32: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    loss = hidden.new_empty((), dtype=torch.float32 if in_float32 else hidden.dtype)
    grad_bias = torch.empty_like(bias) if bias is not None else weight.new_empty(0)
    return loss, torch.empty_like(hidden), torch.empty_like(weight), grad_bias


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:])


def _scaled(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Any, ...]:
    # In place: nothing else holds the gradients, and that of the weight is as large as the weight.
    needed = ctx.needs_input_grad
    scaled = [
        kept.mul_(gradient.to(kept.dtype)) if wanted else None
        for kept, wanted in zip(ctx.saved_tensors, needed[:3], strict=True)
    ]
    return (*scaled, None, None, None, None, None)


_op.register_autograd(_scaled, setup_context=_keep)


COMPOSITES[torch.ops.schedsim.chunked_cross_entropy.default] = _chunks


@register_flop_formula(torch.ops.schedsim.chunked_cross_entropy)
def _flops(hidden_shape: Any, weight_shape: Any, *_: Any, **__: Any) -> int:
    """Three products: the logits, and the gradients of both sides."""
    return int(6 * hidden_shape[0] * hidden_shape[1] * weight_shape[0])
