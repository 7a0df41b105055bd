"""The requests that the ops of a recorded step made of an allocator, one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .record_tables import RecordTables

SAVING = "+"
"""Suffix for the record of a forward run that keeps its saved bundle: its requests differ."""

BARE = "-"
"""Behind the name of an op that runs without its optional outputs, where that is another kernel."""


@dataclass(frozen=True)
class RecordedStep:
    """Requests and releases of memory by each op, and the blocks that exist before a step.

    A record is a sequence of numbers: ``i`` requests block i, ``~i`` releases block i, as in
    `schedsim.allocators.Requests`. One record requests a block; another record may release it, as a
    backward releases the tensors that its forward saved, one by one.

    Attributes
    ----------
    resident_segments
        For each segment of the allocator that is in use before the first step, the bytes of its
        blocks in address order: parameters, buffers, inputs, gradients that the loop keeps. A
        negative number is a gap between blocks.
    block_bytes
        The requested bytes of each block, not rounded.
    holders
        For each block, the tensor of the workload that the block is part of and dies with. Empty
        for a block that a record releases: workspaces, and gradients of parameters.
    records
        By op; of a forward that keeps its bundle under its name and `SAVING`, of a run without the
        op's optional outputs under its name and `BARE`.
    first_records
        For a loop that keeps gradients: records of the first step, which makes them. The blocks
        that these records request, and that neither a record nor a tensor releases, stay from then
        on; `records` are those of later steps, which add to them.
    first_blocks
        For such a loop: by tensor that becomes a gradient, its blocks in `first_records`. They stay
        where the tensor is read; a run whose tensor is not, as one that is there for another
        output, gives them back.
    first_end, later_end
        Records of what follows the last op, the optimizer's step and the release of gradients: in
        the first step, which creates the optimizer's state, and in later steps.
    allocator_options
        The settings of the recorded allocator, as `schedsim.allocators.CachingOptions` takes them.
    """

    resident_segments: tuple[tuple[int, ...], ...]
    block_bytes: tuple[int, ...]
    holders: tuple[str, ...]
    records: Mapping[str, tuple[int, ...]]
    first_records: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    first_blocks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    first_end: tuple[int, ...] = ()
    later_end: tuple[int, ...] = ()
    allocator_options: Mapping[str, Any] = field(default_factory=dict)
    _by_holder: dict[str, list[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found: dict[str, list[int]] = {}
        for block, holder in enumerate(self.holders):
            if holder:
                found.setdefault(holder, []).append(block)
        object.__setattr__(self, "_by_holder", found)

    @property
    def held_blocks(self) -> Mapping[str, list[int]]:
        """By tensor, the blocks that die with it, whichever record requests them."""
        return self._by_holder

    @cached_property
    def tables(self) -> RecordTables:
        """The same in arrays."""
        from .record_tables import RecordTables

        return RecordTables.of(self)

    @property
    def made_at_end_bytes(self) -> int:
        """The optimizer's state: requests that the end of the first step makes and leaves."""
        freed = {~block for block in self.first_end if block < 0}
        return sum(self.block_bytes[b] for b in self.first_end if b >= 0 and b not in freed)

    @property
    def kept_blocks(self) -> frozenset[int]:
        """The gradients that the first step makes, and that the loop keeps."""
        records = self.first_records.values()
        freed = {~block for record in records for block in record if block < 0}
        asked = {block for record in records for block in record if block >= 0}
        return frozenset(b for b in asked - freed if not self.holders[b])

    @property
    def kept_bytes(self) -> int:
        """Bytes of `kept_blocks`."""
        return sum(self.block_bytes[block] for block in self.kept_blocks)

    def row_of(self, op_name: str, *, saves: bool, bare: bool = False, first: bool = False) -> int:
        """The row in `tables` of the record of a run; of one that `saves` or is `bare`, if any.

        `first` is for the first step. Row 0 is empty.
        """
        rows = self.tables.first_rows if first else self.tables.rows
        if saves and op_name + SAVING in rows:
            return rows[op_name + SAVING]
        if bare and op_name + BARE in rows:
            return rows[op_name + BARE]
        return rows.get(op_name, 0)
