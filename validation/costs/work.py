"""Arithmetic and memory traffic of an op, from the shapes of its tensors."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch.utils.flop_counter import flop_registry

from ..capture.program import Call, Program, map_refs, refs

aten = torch.ops.aten

_CPU_ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu: 2,
    # Five products for the forward's two: scores again, and the gradients of V, of P, of Q, of K
    # (Dao et al. 2022, arXiv 2205.14135, algorithm 4).
    aten._scaled_dot_product_flash_attention_for_cpu_backward: 5,
}


class Work(NamedTuple):
    """The arithmetic and the memory traffic of an op.

    Attributes
    ----------
    flops
        Operations of matrix products and convolutions, or one for each element.
    moved_bytes
        Bytes of inputs read and outputs written, each counted once.
    kind
        ``"matmul"``, ``"convolution"``, ``"attention"`` or ``"memory"``.
    dtype
        Type of the arithmetic: ``"fp32"``, ``"bf16"`` or ``"fp16"``.
    """

    flops: int
    moved_bytes: int
    kind: str
    dtype: str


def work_of(program: Program, call: Call) -> Work:
    """Flops and traffic of one run of `call`."""
    packet = getattr(call.target, "overloadpacket", None)
    inputs = list(dict.fromkeys(refs((call.args, call.kwargs))))
    outputs = [v for v in call.outputs if v >= 0]
    moved = sum(_touched(program, v) for v in [*inputs, *outputs])
    if packet is aten.embedding:  # only the looked-up rows of the table count
        moved -= _touched(program, inputs[0]) - _touched(program, outputs[0])
    kind = _kind(str(packet))
    if packet in _CPU_ATTENTION:
        flops = _attention_flops(program, call, _CPU_ATTENTION[packet])
    elif packet in flop_registry:
        flops = _counted_flops(program, call)
    else:
        flops = sum(math.prod(program.values[v].shape) for v in outputs)
        kind = "memory"
    return Work(int(flops), moved, kind, _dtype(program, [*outputs, *inputs]))


def _kind(packet: str) -> str:
    if "attention" in packet:
        return "attention"
    return "convolution" if "conv" in packet else "matmul"


def _touched(program: Program, value: int) -> int:
    """Bytes of the elements that a kernel reads or writes: expanded dimensions count once."""
    v = program.values[value]
    sizes = [n for n, s in zip(v.shape, v.stride, strict=True) if s != 0]
    return math.prod(sizes) * v.dtype.itemsize


def _counted_flops(program: Program, call: Call) -> int:
    """Operations by PyTorch's own formulas, on tensors without memory."""

    def stand_in(value: int) -> torch.Tensor:
        v = program.values[value]
        return torch.empty_strided(v.shape, v.stride, dtype=v.dtype, device="meta")

    made = [stand_in(v) if v >= 0 else None for v in call.outputs]
    formula = flop_registry[call.target.overloadpacket]  # type: ignore[attr-defined]
    return int(
        formula(
            *map_refs(call.args, stand_in),
            **map_refs(call.kwargs, stand_in),
            out_val=tuple(made) if call.is_tuple else made[0],
        )
    )


def _attention_flops(program: Program, call: Call, num_products: int) -> int:
    first = 1 if num_products == 5 else 0  # the backward takes the output's gradient first
    query, key = (program.values[v].shape for v in list(refs(call.args))[first : first + 2])
    batch, heads, length, width = query
    return num_products * 2 * batch * heads * length * key[-2] * width


def _dtype(program: Program, values: list[int]) -> str:
    names = {torch.float16: "fp16", torch.bfloat16: "bf16"}
    for v in values:
        dtype = program.values[v].dtype
        if dtype.is_floating_point:
            return names.get(dtype, "fp32")
    return "fp32"
