"""Attention as CUDA runs it, for graphs captured on a machine without CUDA.

On a CPU build, ``scaled_dot_product_attention`` is traced as the CPU's flash kernel, or, with
dropout or a mask that needs a gradient, as the plain form that stores two T x T matrices. CUDA's
fused kernels store the output and one number per row instead. Which of them runs depends on the
device (`attention_backends`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from schedsim.errors import UnsupportedError

from .attention_backends import (
    CUDA_KERNELS,
    CUDNN,
    EFFICIENT,
    FLASH,
    Attending,
    attention_backend,
)

# The sizes are those of PyTorch's own meta functions for these ops, which are called here
# (torch/_meta_registrations.py, meta__scaled_dot_product_flash_attention, _efficient_attention and
# _cudnn_attention): output like the query; log-sum-exp in fp32, (B, H, T) for flash and cuDNN and
# (B, H, 32 ceil(T / 32)) for memory-efficient, as the CUDA sources allocate
# (aten/src/ATen/native/transformers/cuda/attention.cu). They agree with FlashAttention (Dao et al.
# 2022, arXiv 2205.14135, section 3.1): one statistic per row is stored instead of the T x T matrix.


def note_of(kernels: str) -> str:
    """The line by which a capture says that attention was substituted."""
    major, minor = CUDA_KERNELS[kernels]
    return (
        f"attention is that of CUDA's kernels on compute capability {major}.{minor}, in the sizes "
        "of their meta functions; the graph can be planned, not run"
    )


def _attention_on(capability: tuple[int, int]) -> Callable[..., torch.Tensor]:
    """``scaled_dot_product_attention`` on a device: a plain function, which Dynamo can read."""

    def attend(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if enable_gqa and key.size(-3) != query.size(-3):
            groups = query.size(-3) // key.size(-3)
            key, value = (one.repeat_interleave(groups, -3) for one in (key, value))
        if query.dim() != 4:
            raise UnsupportedError(
                f"attention of a {query.dim()}-dimensional query has no CUDA substitute",
                hint="use kernels='native', or (batch, heads, length, width) inputs",
            )
        wanted = torch.is_grad_enabled()
        asked = Attending(
            query.dtype,
            width=query.size(-1),
            value_width=value.size(-1),
            rows=query.size(-2),
            keys=key.size(-2),
            mask=attn_mask is not None,
            mask_trained=wanted and attn_mask is not None and attn_mask.requires_grad,
            dropout=dropout_p > 0,
            causal=is_causal,
            trained=wanted and any(one.requires_grad for one in (query, key, value)),
        )
        backend = attention_backend(asked, capability)
        if backend == FLASH:
            return _flash(query, key, value, dropout_p, is_causal, scale)
        if attn_mask is not None:
            if attn_mask.dtype is torch.bool:
                zero = torch.zeros((), dtype=query.dtype, device=query.device)
                attn_mask = torch.where(attn_mask, zero, float("-inf"))
            shape = (*query.shape[:-1], key.size(-2))
            attn_mask = attn_mask.expand(shape)
        out: torch.Tensor
        if backend == EFFICIENT:
            op = torch.ops.aten._scaled_dot_product_efficient_attention
            out = op(query, key, value, attn_mask, wanted, dropout_p, is_causal, scale=scale)[0]
        elif backend == CUDNN:
            op = torch.ops.aten._scaled_dot_product_cudnn_attention
            given = (query, key, value, attn_mask, wanted, dropout_p, is_causal, False)
            out = op(*given, scale=scale)[0]
        else:
            op = torch.ops.aten._scaled_dot_product_attention_math
            out = op(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)[0]
        return out

    return attend


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    # The kernel needs widths in multiples of 8; PyTorch pads them, and scales by the true width.
    width = query.size(-1)
    scale = width**-0.5 if scale is None else scale
    padding = -width % 8
    if padding:
        query, key, value = (F.pad(one, [0, padding]) for one in (query, key, value))
    op = torch.ops.aten._scaled_dot_product_flash_attention
    out: torch.Tensor = op(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    return out[..., :width] if padding else out


@contextlib.contextmanager
def substituted(kernels: str) -> Iterator[None]:
    """Trace attention as CUDA's for a key of `CUDA_KERNELS`; leave it alone for ``"native"``."""
    if kernels == "native":
        yield
        return
    original: Any = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = _attention_on(CUDA_KERNELS[kernels])
    try:
        yield
    finally:
        F.scaled_dot_product_attention = original
