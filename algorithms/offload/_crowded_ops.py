"""Where the next cut goes: ops beside which an answer of several cuts holds too much.

A program of some cuts says nothing of memory at the ops between them. Its answer says what lies on
the device at each cut, and what is copied back or made again in each window; some of this surely
lies there during a first run in the window, and may not fit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..graphs._cut_table import Bools
from ..graphs._milp import Floats
from ._window_model import AtCut, Between, WindowProgram


def crowded_ops(program: WindowProgram, x: Floats) -> list[int]:
    """Ops that the answer `x` has no room for, the worst of each window.

    Of the windows without, the op with least room if all lay there that may lie there, where that
    does not fit.
    """
    sure: list[int] = []
    unsure: list[tuple[int, int]] = []
    for first, following, begins, ends, window in _windows(program):
        surely, maybe = _most_over(program, x, first, following, begins, ends, window)
        if surely[0] > 0:
            sure.append(surely[1])
        elif maybe[0] > 0:
            unsure.append(maybe)
    return sorted([*sure, *(op for _, op in sorted(unsure)[-1:])])


def _windows(
    program: WindowProgram,
) -> Iterator[tuple[int, int, AtCut | None, AtCut | None, Between | None]]:
    """(first op, op behind the last, moment before, moment behind, what happens) of each window."""
    yield 0, program.starts[0].following, None, program.starts[0], None
    behind = [*program.starts[1:], None]
    for begins, ends, window in zip(program.ends, behind, program.windows, strict=True):
        following = program.graph.num_ops if ends is None else ends.following
        yield begins.following, following, begins, ends, window


def _most_over(
    program: WindowProgram,
    x: Floats,
    first: int,
    following: int,
    begins: AtCut | None,
    ends: AtCut | None,
    window: Between | None,
) -> tuple[tuple[int, int], tuple[int, int]]:
    """(bytes over the room, op) of what surely lies there, and of what may; -1 for no op."""
    arrays, table = program.graph.arrays, program.table
    size, producer = arrays.tensor_bytes, arrays.tensor_producer
    last = arrays.tensor_result if ends is None else x[ends.here] > 0.5
    stays = known = producer < 0 if begins is None else begins.known
    if begins is not None and window is not None:
        again = np.where(producer >= 0, window.again[np.maximum(producer, 0)], -1)
        repeated = (again >= 0) & (x[np.maximum(again, 0)] > 0.5)
        stays = known & (x[begins.here] > 0.5) & (x[window.back] < 1e-6) & ~repeated
    surely = maybe = (0, -1)
    came: Bools = np.zeros(size.size, dtype=np.bool_)
    for op in range(first, following):
        own = arrays.read_tensor[arrays.read_start[op] : arrays.read_start[op + 1]]
        wanted = last.copy()
        inside = (table.readers >= op) & (table.readers < following)
        wanted[arrays.read_tensor[inside]] = True
        wanted[own] = False
        made = (producer >= first) & (producer < op)
        room = int(table.rooms_bytes[op])
        over = int(size[((known & (stays | came)) | made) & wanted].sum()) - room
        surely = max(surely, (over, op))
        maybe = max(maybe, (int(size[(known | made) & wanted].sum()) - room, op))
        came[own] = True  # what came for a first run stays for the next
    return surely, maybe
