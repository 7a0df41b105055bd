"""The first run of CUDA code, before any step: then inductor tunes it, which takes memory.

At the first call of a kernel inductor compares several forms of it: it copies what the kernel
writes in place, and clears the cache of the device with a buffer of that cache's size. Neither
belongs to a step, and no plan counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ..capture.program import Call, Program, Ref, map_refs, refs
from ..costs.measured import made_up_tensors
from .aligned_calls import ALIGNED_BYTES
from .baked_views import view_offsets
from .group import FusedGroup, OverwritingGroup, Trial


def try_on_device(program: Program, tried: set[Trial]) -> None:
    """Run each group of `program` that calls CUDA once, and what writes over its inputs.

    Views lie off 16 bytes where they do in the step, so that code for that is made here too.

    Parameters
    ----------
    tried
        What has run; what runs is added.

    Notes
    -----
    Takes the memory of one group at a time, as measuring it does.
    """
    places = [(call, _cuda_device(program, call)) for call in program.calls]
    shifts = _shifts(program) if any(device is not None for _, device in places) else {}
    for call, device in places:
        if device is None:
            continue
        apart = tuple(shifts.get(v, 0) for v in refs(call.args))
        for name, target, args in _ways_to_run(call):
            if (name, apart) not in tried:
                tried.add((name, apart))
                _run(program, call, device, target, args, shifts)


def _run(
    program: Program,
    call: Call,
    device: torch.device,
    target: Callable[..., Any],
    args: tuple[Any, ...],
    shifts: Mapping[int, int],
) -> None:
    with torch.no_grad(), torch.random.fork_rng([device]):
        make = made_up_tensors(program, call, device)
        target(*map_refs(args, lambda v: _shifted(make(v), shifts.get(v, 0))))


def _shifts(program: Program) -> dict[int, int]:
    """Values -> the entries by which they lie behind a multiple of 16 bytes."""
    found = {}
    for v, offset in view_offsets(program).items():
        entry_bytes = program.values[v].dtype.itemsize
        found[v] = offset * entry_bytes % ALIGNED_BYTES // entry_bytes
    return found


def _shifted(tensor: torch.Tensor, entries: int) -> torch.Tensor:
    """The same tensor, so many entries behind the beginning of a storage."""
    if not entries:
        return tensor
    span = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
    whole = torch.empty(span + entries, dtype=tensor.dtype, device=tensor.device)
    whole[entries:] = tensor.as_strided((span,), (1,), 0)
    return whole.as_strided(tensor.shape, tensor.stride(), entries)


def _cuda_device(program: Program, call: Call) -> torch.device | None:
    """Where the kernels of a group run; ``None`` for a call of no group, or of none on CUDA."""
    if not isinstance(call.target, FusedGroup) or call.target.by_op:
        return None
    values = [*refs(call.args), *(v for v in call.outputs if v >= 0)]
    devices = (program.values[v].device for v in values)
    return next((device for device in devices if device.type == "cuda"), None)


def _ways_to_run(call: Call) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    group = call.target
    yield group.__name__, group, call.args
    code = call.overwriting
    if isinstance(code, OverwritingGroup) and not code.fails:
        part = Ref(call.takes_over)
        yield code.__name__, code, (part, *(arg for arg in call.args if arg != part))
