"""What a step leaves behind: updated buffers, and one gradient per parameter."""

from __future__ import annotations

from typing import Any

import torch

from .program import Call, Program, Ref, Storage, Value, refs

aten = torch.ops.aten


def add_updates(program: Program, mutations: list[tuple[int, int]]) -> None:
    """Append the copies of new values into the buffers (or inputs) that the step changes.

    Each runs once, after every op that reads the old value; those ops may not repeat either, as
    they would find the new one. BatchNorm in training is the exception: a repeated run reads no
    running statistics.

    Parameters
    ----------
    mutations
        Pairs of values: what is changed, and its new content.
    """
    for old, new in mutations:
        storage = program.values[old].storage
        readers = []
        last = program.values[new].call
        for i, call in enumerate(program.calls):
            if call.is_view:
                continue
            args = call.lean[1] if call.lean else call.args
            reads = [*refs((args, call.kwargs))]
            if any(program.values[v].storage == storage for v in reads):
                call.once = True
                readers.append(i)
            elif any(program.values[v].storage == storage for v in refs((call.args, call.kwargs))):
                last = max(last, i)  # reads the old value where it computes the new one
        at = max([last, *readers]) + 1
        update = Call(
            name=f"{_name_of(program, old)}.update",
            target=aten.copy_.default,
            args=(Ref(old), Ref(new)),
            kwargs={},
            phase="backward" if at > program.seed else "forward",
            once=True,
            tokens=tuple(i for i in readers if i != program.values[new].call),
        )
        insert(program, at, update)


def _name_of(program: Program, value: int) -> str:
    for table in (program.buffers, program.parameters):
        for name, held in table.items():
            if held == value:
                return name
    return "input"


def add_gradients(program: Program, gradients: dict[str, list[int]]) -> None:
    """Make one tensor of each parameter's gradient, in the form in which autograd keeps it.

    A parameter under several names gets the sum of its gradients, added in the order in which they
    are made. Autograd takes a gradient over as it is where its strides are the parameter's and
    nobody else holds it; the copy that it would make elsewhere is an op of the graph here.
    """
    taken: set[int] = set()
    for name, parts in gradients.items():
        parts = sorted(set(parts), key=lambda v: (program.values[v].call, v))
        total = parts[0]
        for part in parts[1:]:
            total = _append(
                program, f"{name}.sum", aten.add.Tensor, (Ref(total), Ref(part)), after=part
            )
        program.gradients[name] = _own(program, name, program.parameters[name], total, taken)
    for position, value in list(program.input_gradients.items()):
        source = program.inputs[position]
        program.input_gradients[position] = _own(
            program, f"input{position}", source, value, taken
        )


def _own(program: Program, name: str, source: int, value: int, taken: set[int]) -> int:
    """`value`, or a copy of it where autograd would not simply take it over."""
    held = program.values[value]
    computed = program.storages[held.storage].kind == "computed" and value != program.tangent
    computed = computed and held.storage != program.values[program.tangent].storage
    if not computed or held.storage in taken or not _same_layout(held, program.values[source]):
        like = program.values[source]
        args = (Ref(value), like.shape, like.stride)
        value = _append(program, f"{name}.lay_out", laid_out, args, after=value)
    taken.add(program.values[value].storage)
    return value


def _same_layout(gradient: Value, parameter: Value) -> bool:
    """Whether strides agree wherever they matter."""
    pairs = zip(gradient.shape, gradient.stride, parameter.stride, strict=True)
    return all(size == 1 or mine == its for size, mine, its in pairs)


def laid_out(
    gradient: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    """A copy of `gradient` with the strides of its parameter."""
    return gradient.new_empty_strided(shape, stride).copy_(gradient)


def _append(
    program: Program, name: str, target: Any, args: tuple[Any, ...], *, after: int
) -> int:
    """A new backward call right after the maker of value `after`; the value it makes."""
    at = max(program.values[after].call + 1, program.seed + 1)
    like = program.values[args[0].value]
    shape, stride = (args[1], args[2]) if target is laid_out else (like.shape, _dense(like))
    numel = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if all(shape) else 0
    program.storages.append(Storage(numel * like.dtype.itemsize, "computed"))
    program.values.append(
        Value(len(program.storages) - 1, tuple(shape), tuple(stride), like.dtype, like.device)
    )
    value = len(program.values) - 1
    insert(
        program, at, Call(name, target, args, {}, outputs=[value], phase="backward", module="")
    )
    return value


def _dense(value: Value) -> tuple[int, ...]:
    """The strides of an elementwise result: dense, in the order of the input's."""
    order = sorted(range(len(value.shape)), key=lambda d: (value.stride[d], -d))
    stride = [0] * len(value.shape)
    step = 1
    for dim in order:
        stride[dim] = step
        step *= max(value.shape[dim], 1)
    return tuple(stride)


def insert(program: Program, at: int, call: Call) -> None:
    """Put `call` before the call that is at index `at` now; its outputs are its own."""
    for value in program.values:
        value.call += value.call >= at
    for storage in program.storages:
        storage.call += storage.call >= at
    for other in program.calls:
        other.tokens = tuple(token + (token >= at) for token in other.tokens)
    program.seed += program.seed >= at
    program.calls.insert(at, call)
    for position, output in enumerate(call.outputs):
        value = program.values[output]
        value.call, value.position = at, position
        program.storages[value.storage].call = at
