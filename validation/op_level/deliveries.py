"""When the backward half of a schedule can give each gradient away: before it ends, where it may.

What averages gradients over ranks sends the first ones while later ones are computed, as in a plain
backward. A gradient is given away when nothing writes or reads it any more, and nothing reads its
parameter: whoever gets the gradient may change either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..capture.program import Program, refs


class Delivery(NamedTuple):
    """Gradients that are given away together.

    Attributes
    ----------
    after : int
        The position in the schedule of the run after which they are.
    gradients : tuple of int
        Their positions in `Program.gradients`.
    """

    after: int
    gradients: tuple[int, ...]


def deliveries(
    program: Program, calls: Sequence[int], split: int, least_bytes: int
) -> list[Delivery]:
    """Deliveries of at least `least_bytes` each, but for the last, which ends with the schedule.

    O(reads of the backward half).

    Parameters
    ----------
    calls
        The call of `program` that each run of the schedule makes.
    split
        The position of the run that brings the gradients of the outputs.
    """
    last: dict[int, int] = {}
    for k in range(split, len(calls)):
        call = program.calls[calls[k]]
        touched = [*refs((call.args, call.kwargs)), *(v for v in call.outputs if v >= 0)]
        if call.lean is not None:
            touched += refs(call.lean[1])
        last.update((program.values[v].storage, k) for v in touched)
    ended = len(calls) - 1
    with_input = {program.values[v].storage for v in program.input_gradients.values()}
    ready: dict[int, int] = {}  # storage -> the run after which its gradients are given away
    for name, v in program.gradients.items():
        storage = program.values[v].storage
        mine = max(last.get(storage, split), last.get(_storage(program, name), split))
        if program.storages[storage].kind != "computed" or storage in with_input:
            mine = ended
        ready[storage] = max(mine, ready.get(storage, split))
    values = [program.values[v] for v in program.gradients.values()]
    order = sorted((ready[value.storage], position) for position, value in enumerate(values))
    found, waiting, waiting_bytes = [], [], 0
    for i, (after, position) in enumerate(order):
        waiting.append(position)
        waiting_bytes += values[position].dtype.itemsize * math.prod(values[position].shape)
        is_last_here = i + 1 == len(order) or order[i + 1][0] > after
        if is_last_here and after < ended and waiting_bytes >= least_bytes:
            found.append(Delivery(after, tuple(waiting)))
            waiting, waiting_bytes = [], 0
    return [*found, Delivery(ended, tuple(waiting))]


def _storage(program: Program, name: str) -> int:
    return program.values[program.parameters[name]].storage
