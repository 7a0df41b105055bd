"""Costs by operations instead of seconds: for plans that recompute the least arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..capture.to_graph import op_calls
from .table import Costs
from .work import work_of

if TYPE_CHECKING:
    from ..capture.captured import CapturedGraph

_TIE_SHARE = 1e-3
"""The share of the measured time that also counts: it decides where operations are equal."""


def counted_costs(captured: CapturedGraph, measured: Costs) -> Costs:
    """`measured` with times in proportion to floating-point operations.

    Matrix products, convolutions and attention are counted, as `torch.utils.flop_counter` does; ops
    that only move memory are almost free. The times of a whole step add up to about what was
    measured, so that an overhead is a share of the step's operations.

    Where arithmetic is expensive and memory is fast beside it (a wide model on a GPU), the plan is
    close to the plan by times; where pointwise kernels are slow (a CPU), it is not.
    """
    program = captured.program
    flops = {}
    for i in op_calls(program):
        call = program.calls[i]
        work = work_of(program, call) if i != program.seed else None
        flops[call.name] = work.flops if work and work.kind != "memory" else 0
    unit_s = sum(measured.time_s.values()) / max(1, sum(flops.values()))
    times = {
        name: unit_s * flops[name] + _TIE_SHARE * time_s for name, time_s in measured.time_s.items()
    }
    return replace(measured, time_s=times, source=f"operations, with ties {measured.source}")
