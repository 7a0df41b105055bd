"""Programs of a step made by hand, tensor by tensor and call by call."""

from __future__ import annotations

import math
from typing import Any

import torch
from schedsim.validation.capture.program import Call, Program, Storage, Value

CPU = torch.device("cpu")


def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def tensor(
    program: Program,
    shape: tuple[int, ...] = (4, 8),
    *,
    kind: str = "computed",
    dtype: torch.dtype = torch.float32,
    stride: tuple[int, ...] | None = None,
    base: int | None = None,
) -> int:
    """A new value, in a storage of its own or in that of the value `base`."""
    storage = len(program.storages)
    if base is None:
        program.storages.append(Storage(math.prod(shape) * dtype.itemsize, kind))
    else:
        storage = program.values[base].storage
    program.values.append(Value(storage, shape, stride or dense(shape), dtype, CPU))
    return len(program.values) - 1


def call(
    program: Program, name: str, target: Any, args: tuple[Any, ...], *outputs: int, **given: Any
) -> Call:
    """A new call, last so far, that makes `outputs`."""
    made = Call(name, target, args, given.pop("kwargs", {}), outputs=list(outputs), **given)
    program.calls.append(made)
    for position, value in enumerate(outputs):
        if value >= 0:
            program.values[value].call = len(program.calls) - 1
            program.values[value].position = position
            storage = program.storages[program.values[value].storage]
            if storage.kind == "computed" and storage.call < 0:
                storage.call = len(program.calls) - 1
    return made
