"""A step of a micro-batch that adds each gradient to the sum of those of the parts before it."""

from __future__ import annotations

from ..torch_private.op_modes import OpOverload
from .captured import CapturedGraph
from .effects import insert_all
from .program import Call, Program, Ref, Storage, Value, aten

_ADD: OpOverload = aten.add_.Tensor
_LOSS = "loss_function."


def with_summed_gradients(captured: CapturedGraph) -> CapturedGraph:
    """`captured` with an op behind each gradient of the model that adds it to a resident sum.

    A gradient is free once it is added. Given to autograd, all gradients of a micro-batch would be
    there beside their sums. The sums are not counted among the static bytes here. O(size of the
    program), which is changed.
    """
    sum_gradients(captured.program)
    return captured.with_program(captured.program)


def sum_gradients(program: Program) -> None:
    """Add the gradients of the model's parameters to `Program.sums` where they are made.

    Gradients of the loss's own parameters stay results.
    """
    values, inserted = program.values, []
    for name, gradient in list(program.gradients.items()):
        if name.startswith(_LOSS):
            continue
        like = values[program.parameters[name]]
        made = values[gradient]
        size_bytes = program.storages[made.storage].size_bytes
        program.storages.append(Storage(size_bytes, "static"))
        values.append(
            Value(len(program.storages) - 1, like.shape, like.stride, made.dtype, made.device)
        )
        program.sums[name] = len(values) - 1
        add = Call(
            f"{name}.add",
            _ADD,
            (Ref(program.sums[name]), Ref(gradient)),
            {},
            phase="backward",
            once=True,
        )
        inserted.append((max(made.call, program.seed) + 1, add))
        del program.gradients[name]
    insert_all(program, inserted)
