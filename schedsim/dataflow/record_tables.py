"""The records of a step as arrays, which kernels read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..kernels.record import Flags, Ints, Record

if TYPE_CHECKING:
    from .recorded_step import RecordedStep

NONE = -1


@dataclass(frozen=True, eq=False)
class RecordTables(Record):
    """Rows of several lengths stand one behind the other: from ``start[i]`` to ``start[i + 1]``.

    Attributes
    ----------
    entries, start
        Every record: ``i`` requests block i, ``~i`` releases it.
    holder
        The number of the tensor that each block belongs to, or `NONE`.
    held, held_start
        The blocks of each tensor.
    block_bytes
    kept
        Whether a block is a gradient that stays from the first step on.
    rows, first_rows
        The row of a record by its key, in the records of later steps and in those of the first.
    tensors
        The number of a tensor by its name.
    unread
        By tensor, the number under which `held` has its blocks of a first step, which a run gives
        back only if nobody reads the tensor.
    """

    entries: Ints
    start: Ints
    holder: Ints
    held: Ints
    held_start: Ints
    block_bytes: Ints
    kept: Flags
    rows: dict[str, int] = field(repr=False)
    first_rows: dict[str, int] = field(repr=False)
    ends: tuple[int, int] = field(repr=False)
    tensors: dict[str, int] = field(repr=False)
    unread: dict[str, int] = field(repr=False)

    @classmethod
    def of(cls, recorded: RecordedStep) -> RecordTables:
        """The tables of a step; row 0 is empty."""
        records: list[Sequence[int]] = [()]

        def numbered(found: Iterable[tuple[str, Sequence[int]]]) -> dict[str, int]:
            numbers = {}
            for key, record in found:
                numbers[key] = len(records)
                records.append(record)
            return numbers

        rows = numbered(recorded.records.items())
        first_rows = numbered(recorded.first_records.items()) or rows
        ends = len(records), len(records) + 1
        records += [recorded.first_end, recorded.later_end]
        tensors = {name: i for i, name in enumerate(recorded.held_blocks)}
        unread = {name: i for i, name in enumerate(recorded.first_blocks, len(tensors))}
        entries, start = _rows_of(records)
        of_tensors = [*recorded.held_blocks.values(), *recorded.first_blocks.values()]
        held, held_start = _rows_of(of_tensors)
        kept = np.zeros(len(recorded.block_bytes), dtype=np.bool_)
        kept[list(recorded.kept_blocks)] = True
        return cls(
            entries,
            start,
            np.array([tensors.get(name, NONE) for name in recorded.holders], dtype=np.int64),
            held,
            held_start,
            np.array(recorded.block_bytes, dtype=np.int64),
            kept,
            rows,
            first_rows,
            ends,
            tensors,
            unread,
        )


def _rows_of(rows: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    start = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=start[1:])
    return np.array([entry for row in rows for entry in row], dtype=np.int64), start
