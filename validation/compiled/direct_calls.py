"""Ops of a compiled step that stay kernels of their own, called on the shorter way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..capture.program import Program
from ..op_level.short_calls import call_shortly

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
    return call_shortly(program, DIRECT)
