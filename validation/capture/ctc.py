"""`torch.nn.functional.ctc_loss` as one op of the graph, and its backward as another.

torch's own op sizes what its backward reads by the longest target of the batch, which is data: no
trace over tensors without memory goes beyond it. Targets are padded to a width, or stand one behind
another, so none is longer than that. These ops are planned with as much, and run torch's kernels
with what there is.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..measure.storage import COMPOSITES

NONE, MEAN, SUM = range(3)
"""torch's numbers for reductions."""


@contextlib.contextmanager
def whole_ctc() -> Iterator[None]:
    """Trace the loss on the CPU as one op, and the ops of its reduction."""
    own = torch.ctc_loss
    torch.ctc_loss = ctc_as_op
    try:
        yield
    finally:
        torch.ctc_loss = own


def ctc_as_op(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: int = MEAN,
    zero_infinity: bool = False,
) -> Tensor:
    """The loss, by the ops of torch's own function around one op."""
    if torch.is_autocast_enabled("cpu") and log_probs.dtype in (torch.bfloat16, torch.float16):
        log_probs = log_probs.float()
    is_batched = log_probs.dim() == 3
    lengths = [
        one if isinstance(one, Tensor) else torch.tensor(one)
        for one in (input_lengths, target_lengths)
    ]
    found = torch.ops.schedsim.ctc_loss(
        log_probs if is_batched else log_probs.unsqueeze(1),
        targets.long(),
        *lengths,
        blank,
        zero_infinity,
    )
    loss: Tensor = found[0]
    if zero_infinity:
        loss = torch.where(loss == math.inf, torch.scalar_tensor(0.0, dtype=loss.dtype), loss)
    if reduction == MEAN:
        return (loss / lengths[1].clamp_min(1)).mean()
    if reduction == SUM:
        return loss.sum()
    return loss if is_batched else loss.squeeze(0)


def longest_target(targets: Tensor) -> int:
    """The most that a target may have."""
    return int(targets.shape[-1])


def _eager_forward(*given: Any) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = torch.ops.aten._ctc_loss.Tensor(*given)
    return found


@torch.library.custom_op(
    "schedsim::ctc_loss",
    mutates_args=(),
    schema="(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, "
    "int blank, bool zero_infinity) -> (Tensor, Tensor)",
)
def _forward(*given: Any) -> tuple[Tensor, Tensor]:
    """Each sample's loss, and what its backward reads."""
    return _eager_forward(*given)


@_forward.register_fake
def _(log_probs: Tensor, targets: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    steps, batch, _classes = log_probs.shape
    wide = 2 * longest_target(targets) + 1
    return log_probs.new_empty(batch), log_probs.new_empty(batch, steps, wide)


def _eager_backward(*given: Any) -> Tensor:
    found: Tensor = torch.ops.aten._ctc_loss_backward.Tensor(*given)
    return found


@torch.library.custom_op(
    "schedsim::ctc_loss_backward",
    mutates_args=(),
    schema="(Tensor gradient, Tensor log_probs, Tensor targets, Tensor input_lengths, "
    "Tensor target_lengths, Tensor loss, Tensor log_alpha, int blank, bool zero_infinity) "
    "-> Tensor",
)
def _backward(*given: Any) -> Tensor:
    """The gradient of the logarithms of probabilities."""
    return _eager_backward(*given)


@_backward.register_fake
def _(gradient: Tensor, log_probs: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.how = inputs[4:]
    ctx.save_for_backward(*inputs[:4], *output)
    ctx.mark_non_differentiable(output[1])


def _pull(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Any, ...]:
    found = torch.ops.schedsim.ctc_loss_backward(gradient, *ctx.saved_tensors, *ctx.how)
    return (found, *(None,) * 5)


_forward.register_autograd(_pull, setup_context=_keep)

COMPOSITES[torch.ops.schedsim.ctc_loss.default] = _eager_forward
COMPOSITES[torch.ops.schedsim.ctc_loss_backward.default] = _eager_backward
