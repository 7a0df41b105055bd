"""Roofline seconds of ops as they run, for code that is not captured as a graph."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from schedsim.workloads.devices import get_device

from ..torch_private.op_modes import TorchDispatchMode, schema_of
from ..torch_private.pytrees import tree_leaves
from .calibration import Calibration
from .work import Work

_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16"}


class RooflineClock(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up, while it is entered, the times of the ops that run, by a device's data sheet.

    Parameters
    ----------
    device_name
        A name of ``schedsim.workloads.devices``.

    Attributes
    ----------
    elapsed_s : float
        Seconds of the ops so far, one after another.

    Examples
    --------
    >>> with RooflineClock("a100-80gb") as clock:  # 2 * 1024^3 flops at 19.5 Tflop/s
    ...     _ = torch.empty(1024, 1024) @ torch.empty(1024, 1024)
    >>> round(clock.elapsed_s * 1e6, 2)
    110.13
    """

    def __init__(self, device_name: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device, self.reached = get_device(device_name), Calibration()
        self.elapsed_s = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the op, then add its time."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.elapsed_s += self.reached.time_s(_work(func, args, kwargs, out), self.device)
        return out


def _work(func: Any, args: Any, kwargs: Any, out: Any) -> Work:
    outputs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
    inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    dtype = next((t.dtype for t in (*outputs, *inputs) if t.dtype.is_floating_point), None)
    name = _NAMES.get(dtype, "fp32") if dtype is not None else "fp32"
    returns = schema_of(func).returns
    views = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
    if views or (not inputs and func.__name__.startswith("empty")):
        return Work(0, 0, "memory", name)
    packet = func.overloadpacket
    moved = sum(_touched(tensor) for tensor in {id(t): t for t in (*inputs, *outputs)}.values())
    if packet is torch.ops.aten.embedding:  # only the looked-up rows of the table count
        moved -= _touched(inputs[0]) - _touched(outputs[0])
    if packet not in flop_registry:
        return Work(sum(t.numel() for t in outputs), moved, "memory", name)
    text = str(packet)
    kind = "attention" if "attention" in text else "convolution" if "conv" in text else "matmul"
    return Work(int(flop_registry[packet](*args, **kwargs, out_val=out)), moved, kind, name)


def _touched(tensor: Tensor) -> int:
    """Bytes of the elements that a kernel reads or writes: expanded dimensions count once."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(n for n, s in pairs if s != 0) * tensor.element_size()
