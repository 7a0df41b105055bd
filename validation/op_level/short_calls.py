"""Frequent ops called by PyTorch's Python functions, whose way to the same kernel is shorter.

An op that is called as ``torch.ops.aten...`` converts its arguments twice, which takes about a
microsecond, and a step calls hundreds: on a CUDA device that is the time until the next kernel is
launched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from ..capture.program import Program

aten = torch.ops.aten

SHORT: dict[Any, Callable[..., Any]] = {
    aten.add.Tensor: torch.add,
    aten.addmm.default: torch.addmm,
    aten.bmm.default: torch.bmm,
    aten.cat.default: torch.cat,
    aten.clone.default: torch.clone,
    aten.convolution.default: torch.convolution,
    aten.cos.default: torch.cos,
    aten.detach.default: torch.detach,
    aten.div.Tensor: torch.div,
    aten.expand.default: torch.Tensor.expand,
    aten.mean.dim: torch.mean,
    aten.mm.default: torch.mm,
    aten.mul.Tensor: torch.mul,
    aten.neg.default: torch.neg,
    aten.permute.default: torch.permute,
    aten.pow.Tensor_Scalar: torch.pow,
    aten.relu.default: torch.relu,
    aten.rsqrt.default: torch.rsqrt,
    aten.select.int: torch.select,
    aten.sigmoid.default: torch.sigmoid,
    aten.sin.default: torch.sin,
    aten.sub.Tensor: torch.sub,
    aten.sum.dim_IntList: torch.sum,
    aten.t.default: torch.t,
    aten.tanh.default: torch.tanh,
    aten.transpose.int: torch.transpose,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.view.default: torch.Tensor.view,
}
"""Ops and the functions that call them, with the same arguments in the same order."""


def call_shortly(program: Program, functions: Mapping[Any, Callable[..., Any]] = SHORT) -> Program:
    """`program` with the functions in place of their ops; the results are the same to the bit."""
    calls = [
        call if call.target not in functions else replace(call, target=functions[call.target])
        for call in program.calls
    ]
    return replace(program, calls=calls)
