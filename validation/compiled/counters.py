"""Counters of a step, as of the batches that a batch norm has seen, are raised in place."""

from __future__ import annotations

from ..capture.program import Program, Ref, refs
from ..torch_private.op_modes import OpOverload
from .fusible import aten


def raise_in_place(program: Program) -> None:
    """Add numbers to buffers in one kernel, where a sum is made for the copy into its buffer alone.

    Compiled, the sum would be a group of its own, whose call takes longer than the kernel. The sums
    are left without a reader. O(size of the program).
    """
    values = program.values
    readers: dict[int, int] = {}
    for call in program.calls:
        for storage in {values[v].storage for v in refs((call.args, call.kwargs))}:
            readers[storage] = readers.get(storage, 0) + 1
    kept = {values[v].storage for v in (*program.outputs, *program.held)}
    for call in program.calls:
        if call.target is not aten.copy_.default:
            continue
        old, new = (values[ref.value] for ref in call.args[:2])
        if new.call < 0 or new.storage in kept or readers[new.storage] > 1:
            continue
        number = _added(program, new.call, call.args[0].value)
        if number is not None and old.dtype == new.dtype:
            call.target, call.args = _RAISE, (call.args[0], number)


_RAISE: OpOverload = aten.add_.Tensor


def _added(program: Program, at: int, value: int) -> int | float | None:
    """The number that call `at` adds to `value`, if it does that alone."""
    call = program.calls[at]
    if call.target is not aten.add.Tensor or call.kwargs or call.args[0] != Ref(value):
        return None
    number = call.args[1]
    return number if isinstance(number, int | float) else None
