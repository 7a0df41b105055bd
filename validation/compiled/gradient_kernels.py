"""The backward of a convolution as two kernels: one for its weight, and one for its input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ..capture.program import Call, Program

aten = torch.ops.aten

_SUFFIX = ".input"
"""What the name of a kernel for the gradient of an input ends in."""


def split_gradients(program: Program) -> Program:
    """`program` with each backward of a convolution as two kernels, where that is all it runs.

    PyTorch runs these two one behind the other anyway, so that results are the same to the bit.
    Apart, the gradient of the weight can be made when there is room for it, without the gradient of
    the input being made again, and the input is free for the kernel that makes its gradient: a
    convolution of the other direction, which reads the gradient and the weight alone. The gradient
    of a bias is made with that of the weight. O(size of the program).
    """
    if not any(_splits(program, call) for call in program.calls):
        return program
    new = replace(
        program,
        values=[replace(value) for value in program.values],
        storages=[replace(storage) for storage in program.storages],
        calls=[],
    )
    moved: list[int] = []
    for call in program.calls:
        tokens = tuple(moved[token] for token in call.tokens)
        if _splits(program, call):
            for part in (_of_weight(call), _of_input(program, call)):
                part.tokens = tokens
                new.append(part)
        else:
            new.append(replace(call, outputs=list(call.outputs), tokens=tokens))
        moved.append(len(new.calls) - 1)
    new.seed = moved[program.seed]
    return new


def _splits(program: Program, call: Call) -> bool:
    if call.target is not aten.convolution_backward.default:
        return False
    mask, groups = call.args[-1], call.args[9]
    gradient = program.values[call.args[0].value]
    # On a GPU, kernels of depthwise convolutions are PyTorch's own in one direction only.
    known = gradient.device.type == "cpu" or groups == 1
    return mask[0] and mask[1] and known and not gradient.dtype.is_complex


def _of_weight(call: Call) -> Call:
    mask = [False, *call.args[-1][1:]]
    return replace(call, args=(*call.args[:-1], mask), outputs=[-1, *call.outputs[1:]])


def _of_input(program: Program, call: Call) -> Call:
    gradient, x, weight, _, stride, padding, dilation, transposed, _, groups, _ = call.args
    shapes = (program.values[v.value].shape[2:] for v in (x, gradient, weight))
    more = [
        0 if transposed else size - ((given - 1) * s - 2 * p + d * (kernel - 1) + 1)
        for size, given, kernel, s, p, d in zip(*shapes, stride, padding, dilation, strict=True)
    ]
    settings = (stride, padding, dilation, not transposed, more, groups)
    return replace(
        call,
        name=f"{call.name}{_SUFFIX}",
        target=aten.convolution.default,
        args=(gradient, weight, None, *settings),
        outputs=call.outputs[:1],
        is_tuple=False,
    )


def in_one_kernel(calls: Sequence[Call]) -> Call | None:
    """The one kernel that does what `calls` do, the two halves of one backward in either order.

    ``None`` for other calls, and where the two read their gradient or weight in different layouts.
    """
    if len(calls) != 2:
        return None
    of_input, of_weight = sorted(
        calls, key=lambda call: call.target is not aten.convolution.default
    )
    if of_weight.target is not aten.convolution_backward.default or of_weight.args[-1][0]:
        return None
    gradient, _, weight, *_ = of_weight.args
    if of_input.name != f"{of_weight.name}{_SUFFIX}" or of_input.args[:2] != (gradient, weight):
        return None
    mask = [True, *of_weight.args[-1][1:]]
    outputs = [*of_input.outputs, *of_weight.outputs[1:]]
    return replace(of_weight, args=(*of_weight.args[:-1], mask), outputs=outputs)
