"""CUDA's fused cells of recurrent layers, as arithmetic."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def lstm_cell(
    a: Tensor,
    b: Tensor,
    cx: Tensor,
    bias_a: Tensor | None = None,
    bias_b: Tensor | None = None,
    seed: int = 0,
) -> Any:
    """``_thnn_fused_lstm_cell``: state, cell, and the gates for the backward."""
    gates = a + b if bias_a is None or bias_b is None else a + b + bias_a + bias_b
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def lstm_cell_backward(
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    cx: Tensor,
    cy: Tensor,
    kept: Tensor,
    has_bias: bool,
    seed: int = 0,
) -> Any:
    """``_thnn_fused_lstm_cell_backward_impl``."""
    i, f, g, o = kept.chunk(4, 1)
    t = cy.tanh()
    grad_hy = torch.zeros_like(cx) if grad_hy is None else grad_hy
    grad_c = grad_hy * o * (1 - t * t)
    if grad_cy is not None:
        grad_c = grad_c + grad_cy
    parts = (
        grad_c * g * i * (1 - i),
        grad_c * cx * f * (1 - f),
        grad_c * i * (1 - g * g),
        grad_hy * t * o * (1 - o),
    )
    grad = torch.cat(parts, 1)
    return grad, grad_c * f, grad.sum(0) if has_bias else None


def gru_cell(
    a: Tensor,
    b: Tensor,
    hx: Tensor,
    bias_a: Tensor | None = None,
    bias_b: Tensor | None = None,
    seed: int = 0,
) -> Any:
    """``_thnn_fused_gru_cell``: state, and what the backward needs."""
    a = a if bias_a is None else a + bias_a
    b = b if bias_b is None else b + bias_b
    (ar, az, an), (br, bz, bn) = a.chunk(3, 1), b.chunk(3, 1)
    r, z = (ar + br).sigmoid(), (az + bz).sigmoid()
    n = (an + r * bn).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, bn], 1)


def gru_cell_backward(grad_hy: Tensor, kept: Tensor, has_bias: bool, seed: int = 0) -> Any:
    """``_thnn_fused_gru_cell_backward``."""
    r, z, n, hx, bn = kept.chunk(5, 1)
    grad_n = grad_hy * (1 - z) * (1 - n * n)
    grad_z = grad_hy * (hx - n) * z * (1 - z)
    grad_r = grad_n * bn * r * (1 - r)
    grad_a = torch.cat([grad_r, grad_z, grad_n], 1)
    grad_b = torch.cat([grad_r, grad_z, grad_n * r], 1)
    biases = (grad_a.sum(0), grad_b.sum(0)) if has_bias else (None, None)
    return grad_a, grad_b, grad_hy * z, *biases
