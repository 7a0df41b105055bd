"""Kernels of CUDA alone, as arithmetic: attention, cuDNN's batch norm and recurrent layers.

Each takes the op's own arguments, on the CPU, and a seed; it returns what the op returns. Backward
passes are those of autograd through the same arithmetic, with the same random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import enable_reentrant_dispatch

from schedsim.errors import UnsupportedError

from ..torch_private.op_modes import TorchDispatchMode
from .values_cells import gru_cell, gru_cell_backward, lstm_cell, lstm_cell_backward

aten = torch.ops.aten


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp of attention, in single precision at least."""
    kind = torch.float64 if query.dtype == torch.float64 else torch.float32
    query, key, value = query.to(kind), key.to(kind), value.to(kind)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    by = scale if scale is not None else 1 / math.sqrt(query.shape[-1])
    scores = query @ key.transpose(-1, -2) * by
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~mask, -math.inf)
    if bias is not None:
        scores = scores + bias
    weights = scores.softmax(-1)
    if dropout:
        drawn = torch.rand(weights.shape, generator=torch.Generator().manual_seed(seed))
        weights = weights * (drawn >= dropout) / (1 - dropout)
    return weights @ value, scores.logsumexp(-1)


class _AsItIs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs ops as they are: PyTorch wants some mode where autograd is used below itself."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """The op."""
        return func(*args, **(kwargs or {}))


@contextmanager
def _autograd(enabled: bool) -> Iterator[None]:
    """Composite ops, and gradients where `enabled`, inside of an op."""
    as_it_is: Any = _AsItIs
    with enable_reentrant_dispatch(), as_it_is(), torch.set_grad_enabled(enabled):
        yield


def _gradients(
    grad: Tensor, inputs: tuple[Tensor, ...], function: Callable[..., Tensor]
) -> tuple[Tensor, ...]:
    """Gradients of `function` at `inputs`, by autograd."""
    with _autograd(True):
        leaves = [one.detach().clone().requires_grad_() for one in inputs]
        out = function(*leaves)
        return torch.autograd.grad(out, leaves, grad.to(out.dtype))


def _attention_gradients(
    grad: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor],
    bias: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
    seed: int,
) -> tuple[Tensor, ...]:
    def output(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return _attention(query, key, value, bias, dropout, causal, scale, seed)[0]

    return _gradients(grad, inputs, output)


def _first(seed: Tensor) -> int:
    """The seed that a forward left in the tensor of its random state."""
    return int(seed.flatten()[0]) if seed.numel() else 0


def _given(found: tuple[Any, ...], *defaults: Any) -> tuple[Any, ...]:
    """All positional arguments; the last ones have their defaults if they were left out."""
    return (*found, *defaults[len(found) :])


def _efficient(
    q: Tensor, k: Tensor, v: Tensor, bias: Any, lse: bool, *more: Any, **named: Any
) -> Any:
    p, causal = _given(more, 0.0, False)
    seed = named["seed"]
    out, statistics = _attention(q, k, v, bias, p, causal, named.get("scale"), seed)
    return out, (statistics if lse else None), torch.tensor(seed), None


def _efficient_backward(
    grad: Tensor, *given: Any, seed: int = 0, scale: float | None = None
) -> Any:
    q, k, v, bias, _, _, state, _, p, wanted, causal = _given(given, *(None,) * 10, False)
    if bias is not None and wanted[3]:
        raise UnsupportedError(
            "the dry device has no values for the gradient of an attention's bias",
            hint="without --values it runs, and its memory is true",
        )
    return *_attention_gradients(grad, (q, k, v), bias, p, causal, scale, _first(state)), None


def _flash(q: Tensor, k: Tensor, v: Tensor, *more: Any, **named: Any) -> Any:
    p, causal, _ = _given(more, 0.0, False, False)
    seed = named["seed"]
    out, lse = _attention(q, k, v, None, p, causal, named.get("scale"), seed)
    return out, lse, None, None, None, None, torch.tensor([seed, 0]), None, None


def _flash_backward(grad: Tensor, *given: Any, seed: int = 0, scale: float | None = None) -> Any:
    q, k, v = given[:3]
    p, causal, state = given[9:12]
    return _attention_gradients(grad, (q, k, v), None, p, causal, scale, _first(state))


def _cudnn(q: Tensor, k: Tensor, v: Tensor, bias: Any, lse: bool, *more: Any, **named: Any) -> Any:
    p, causal, _ = _given(more, 0.0, False, False)
    seed = named["seed"]
    out, statistics = _attention(q, k, v, bias, p, causal, named.get("scale"), seed)
    kept = statistics if lse else None
    return out, kept, None, None, None, None, torch.tensor(seed), None, None


def _cudnn_backward(grad: Tensor, *given: Any, seed: int = 0, scale: float | None = None) -> Any:
    q, k, v, _, _, state, _, bias = given[:8]
    p, causal = given[12:14]
    return _attention_gradients(grad, (q, k, v), bias, p, causal, scale, _first(state))


def _batch_norm(*given: Any, seed: int = 0) -> Any:
    return *aten.native_batch_norm(*given), None


def _batch_norm_backward(x: Tensor, grad: Tensor, *given: Any, seed: int = 0) -> Any:
    weight, mean, var, save_mean, save_var, eps, _ = given
    three = [True, True, True]
    return aten.native_batch_norm_backward(
        grad, x, weight, mean, var, save_mean, save_var, True, eps, three
    )


_MODES = {0: "rnn_relu", 1: "rnn_tanh", 2: "lstm", 3: "gru"}


def _rnn(
    mode: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    bidirectional: bool,
    batch_sizes: Any,
    per_layer: int,
) -> Callable[..., Any]:
    """The layer as a function of input, states and weights."""
    if dropout or batch_sizes or per_layer not in (2, 4):
        raise UnsupportedError(
            "the dry device has no values for cuDNN's recurrent layers with dropout, packed "
            "sequences or projections",
            hint="without --values they run, and their memory is an estimate",
        )
    layer = getattr(torch, _MODES[mode])

    def run(x: Tensor, hx: Tensor, cx: Tensor | None, weights: list[Tensor]) -> Any:
        state: Any = (hx, cx) if mode == 2 else hx
        biased = per_layer == 4
        found = layer(x, state, weights, biased, num_layers, 0.0, True, bidirectional, batch_first)
        return found if mode == 2 else (*found, None)

    return run


def _cudnn_rnn(x: Tensor, weights: list[Tensor], per_layer: int, *given: Any, seed: int = 0) -> Any:
    _, hx, cx, mode, _, _, num_layers, batch_first, dropout, _, both, sizes, _ = given
    run = _rnn(mode, num_layers, batch_first, dropout, both, sizes, per_layer)
    with _autograd(False):
        out, hy, cy = run(x, hx, cx, list(weights))
    return out, hy, cy, None, None


def _cudnn_rnn_backward(
    x: Tensor, weights: list[Tensor], per_layer: int, *given: Any, seed: int = 0
) -> Any:
    _, hx, cx, _, *grads, mode, _, _, num_layers, batch_first = given[:12]
    dropout, _, both, sizes = given[12:16]
    run = _rnn(mode, num_layers, batch_first, dropout, both, sizes, per_layer)
    with _autograd(True):
        leaves = [
            None if one is None else one.detach().clone().requires_grad_()
            for one in (x, hx, cx, *weights)
        ]
        found = run(leaves[0], leaves[1], leaves[2], leaves[3:])
        pairs = [
            (made, grad)
            for made, grad in zip(found, grads, strict=True)
            if made is not None and grad is not None
        ]
        inputs = [leaf for leaf in leaves if leaf is not None]
        gradients = iter(
            torch.autograd.grad(
                [made for made, _ in pairs],
                inputs,
                [grad for _, grad in pairs],
                allow_unused=True,
                materialize_grads=True,
            )
        )
    back = [None if leaf is None else next(gradients) for leaf in leaves]
    return back[0], back[1], back[2], back[3:]


def _rms_norm_backward(
    grad: Tensor,
    x: Tensor,
    shape: list[int],
    rstd: Tensor,
    weight: Tensor | None,
    wanted: list[bool],
    *,
    seed: int = 0,
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of ``x * rstd * weight``, where ``rstd`` is ``1 / sqrt(mean(x^2) + eps)``."""
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32
    dims = tuple(range(x.dim() - len(shape), x.dim()))
    grad, scale = (
        grad.to(kind),
        rstd.to(kind).reshape(*x.shape[: x.dim() - len(shape)], *[1] * len(shape)),
    )
    normed = x.to(kind) * scale
    weighted = grad if weight is None else grad * weight.to(kind)
    back = scale * (weighted - normed * (weighted * normed).mean(dims, keepdim=True))
    of_weight = None
    if weight is not None and wanted[1]:
        of_weight = (grad * normed).reshape(-1, *shape).sum(0).to(weight.dtype)
    return back.to(x.dtype) if wanted[0] else None, of_weight


SUBSTITUTES: dict[Any, Callable[..., Any]] = {
    aten._scaled_dot_product_efficient_attention: _efficient,
    aten._scaled_dot_product_efficient_attention_backward: _efficient_backward,
    aten._scaled_dot_product_flash_attention: _flash,
    aten._scaled_dot_product_flash_attention_backward: _flash_backward,
    aten._scaled_dot_product_cudnn_attention: _cudnn,
    aten._scaled_dot_product_cudnn_attention_backward: _cudnn_backward,
    aten.cudnn_batch_norm: _batch_norm,
    aten.cudnn_batch_norm_backward: _batch_norm_backward,
    aten._cudnn_rnn: _cudnn_rnn,
    aten._cudnn_rnn_backward: _cudnn_rnn_backward,
    aten._fused_rms_norm_backward: _rms_norm_backward,
    aten._thnn_fused_lstm_cell: lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl: lstm_cell_backward,
    aten._thnn_fused_gru_cell: gru_cell,
    aten._thnn_fused_gru_cell_backward: gru_cell_backward,
}
"""Op -> its arithmetic."""
