"""Which gradients of weights take far more scratch in channels-last than plane by plane."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch

from ..capture.program import Call, Program, map_refs, refs
from ..measure.allocator import allocations
from ..torch_private.inductor_calls import outside_of_traces

aten = torch.ops.aten

_GROUPS = 9
"""Position of the number of groups among the arguments of ``aten.convolution_backward``."""


def needs_planes(program: Program, call: Call) -> bool:
    """Whether `call` is to read its images plane by plane, and not in channels-last.

    On a CPU, the gradient of a weight that is larger than the images takes its own size more of
    scratch in channels-last, and is seldom quicker. That of a depthwise convolution may take its
    weight for one without groups there: for 384 channels and 7 x 7 places, of 14 x 14 images,
    19.6 MB of scratch instead of 0.5. So such kernels are run in both layouts, once for each
    distinct shape, and do without channels-last where that takes more memory by more than copies of
    the images; a depthwise one, which is slower then, by more than all that it reads and writes.

    Raises
    ------
    SchedsimError
        Another profiler is on, so that no memory can be measured.
    """
    if call.target is not aten.convolution_backward.default or not call.args[-1][1]:
        return False
    order = list(refs(call.args))
    given = [program.values[v] for v in order]
    if any(value.device.type != "cpu" or len(value.shape) != 4 for value in given):
        return False
    form = map_refs(call.args, order.index)
    gradient, x, weight = (math.prod(given[i].shape) for i in form[:3])
    if call.args[_GROUPS] == 1 and weight <= gradient + x:
        return False
    shapes = tuple((value.shape, value.dtype) for value in given)
    return _needs_planes(shapes, _hashable(form))


def _hashable(tree: Any) -> Any:
    return tuple(map(_hashable, tree)) if isinstance(tree, tuple | list) else tree


@lru_cache(maxsize=1024)
def _needs_planes(shapes: tuple[tuple[tuple[int, ...], torch.dtype], ...], form: Any) -> bool:
    positions, settings = form[:3], form[3:]
    with outside_of_traces(), torch.no_grad():
        planes = [torch.zeros(shape, dtype=dtype) for shape, dtype in shapes]
        last = [one.contiguous(memory_format=torch.channels_last) for one in planes]
        one, other = (
            _peak_bytes([tensors[i] for i in positions], settings) for tensors in (planes, last)
        )
    gradient, x, weight = (planes[i] for i in positions)
    most_bytes = gradient.nbytes + x.nbytes
    if settings[_GROUPS - len(positions)] > 1:
        most_bytes += x.nbytes + 2 * weight.nbytes
    return bool(other - one > most_bytes)


def _peak_bytes(tensors: list[torch.Tensor], settings: Any) -> int:
    """Most bytes that a backward of `tensors` allocates at once, its outputs among them."""
    changes = allocations(lambda: aten.convolution_backward(*tensors, *settings))
    return max(accumulate(changes), default=0)
