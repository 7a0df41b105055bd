"""Ops called by PyTorch's Python functions, whose way to the same kernel is shorter.

An op that is called as ``torch.ops.aten...`` converts its arguments twice, which takes about a
microsecond: a step of small tensors calls hundreds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ..capture.program import Program

aten = torch.ops.aten

DIRECT: dict[Any, Callable[..., Any]] = {
    aten.mm.default: torch.mm,
    aten.addmm.default: torch.addmm,
    aten.bmm.default: torch.bmm,
    aten.baddbmm.default: torch.baddbmm,
    aten.convolution.default: torch.convolution,
    aten.copy_.default: torch.Tensor.copy_,
    aten.add_.Tensor: torch.Tensor.add_,
}
"""Ops and the functions that call them, with the same arguments in the same order."""


def call_directly(program: Program) -> Program:
    """`program` with the functions in place of their ops; the results are the same to the bit."""
    calls = [
        call if call.target not in DIRECT else replace(call, target=DIRECT[call.target])
        for call in program.calls
    ]
    return replace(program, calls=calls)
