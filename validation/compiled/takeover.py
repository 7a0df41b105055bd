"""Which output of a group may be written in place of which of its inputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..capture.program import Program, refs
from .fusible import elementwise


def takeover(
    program: Program,
    calls: Sequence[int],
    inputs: Sequence[int],
    outputs: Sequence[int],
    results: Collection[int],
) -> tuple[int, int]:
    """Positions of an input and of an output that may take over its storage; (-1, -1) for none.

    The largest such input is taken. It is read element by element, for as many elements as the
    output has, and by no sum in the group, so that code which has written an element never reads it
    again.

    Parameters
    ----------
    calls
        Calls of the group, in order, views included.
    results
        Storages that outlive the step.
    """
    values, storages = program.values, program.storages
    found, most = (-1, -1), 0
    for position, i in enumerate(inputs):
        held = values[i]
        storage = storages[held.storage]
        alone = sum(values[v].storage == held.storage for v in inputs) == 1
        if storage.kind != "computed" or held.storage in results or not alone:
            continue
        if storage.size_bytes <= most or not _is_read_by_element(program, calls, i):
            continue
        for over, o in enumerate(outputs):
            made = values[o]
            same = (held.shape, held.stride, held.dtype, held.device)
            fits = same == (made.shape, made.stride, made.dtype, made.device)
            fits = fits and storages[made.storage].size_bytes == storage.size_bytes
            if fits and elementwise(program, program.calls[made.call]):
                found, most = (position, over), storage.size_bytes
                break
    return found


def _is_read_by_element(program: Program, calls: Sequence[int], value: int) -> bool:
    """Whether all values that follow from `value` have its shape and are computed by element."""
    values, shape = program.values, program.values[value].shape
    following = {value}
    for i in calls:
        call = program.calls[i]
        if not following & set(refs((call.args, call.kwargs))):
            continue
        if call.is_view or call.is_tuple or not elementwise(program, call):
            return False
        if values[call.outputs[0]].shape != shape:
            return False
        following.add(call.outputs[0])
    return True
