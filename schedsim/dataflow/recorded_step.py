"""What the ops of a step asked of an allocator when they were recorded: every request by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SAVING = "+"
"""Behind the name of a forward op that keeps its bundle: another record than without."""

BARE = "-"
"""Behind the name of an op that runs without its optional outputs, where that is another kernel."""


@dataclass(frozen=True)
class RecordedStep:
    """Requests and releases of memory of each op, and what is there before a step.

    A record is a sequence of numbers: ``i`` asks for block i, ``~i`` gives it back, as in
    `schedsim.allocators.Requests`. A block belongs to one record that asks for it; another may give
    it back (a backward the tensors that its forward saved, one by one).

    Attributes
    ----------
    resident_segments
        Of each segment of the allocator that holds something before the first step, the bytes of
        its blocks in the order of their addresses: parameters, buffers, inputs, gradients that the
        loop keeps. A negative number is a gap between them.
    block_bytes
        Of each block, as asked for, not rounded.
    holders
        Of each block the tensor of the workload that it is a part of, and dies with; empty for one
        that dies when a record says so: workspaces, and gradients of parameters.
    records
        By op; of a forward that keeps its bundle under its name and `SAVING`, of a run without the
        op's optional outputs under its name and `BARE`.
    first_end, later_end
        After the last op: the optimizer's step and the release of gradients, in the first step,
        which makes the optimizer's state, and in later ones.
    allocator_options
        Of `schedsim.allocators.CachingOptions`: the settings of the allocator that was recorded.
    """

    resident_segments: tuple[tuple[int, ...], ...]
    block_bytes: tuple[int, ...]
    holders: tuple[str, ...]
    records: Mapping[str, tuple[int, ...]]
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

    def held_by(self, tensor: str) -> list[int]:
        """The blocks that die with `tensor`, whichever record asks for them."""
        return self._by_holder.get(tensor, [])

    @property
    def made_at_end_bytes(self) -> int:
        """What the end of the first step makes and leaves: the optimizer's state."""
        freed = {~block for block in self.first_end if block < 0}
        return sum(self.block_bytes[b] for b in self.first_end if b >= 0 and b not in freed)

    def record_of(self, op_name: str, *, saves: bool, bare: bool = False) -> tuple[int, ...]:
        """The record of a run of the op; of one that `saves` or is `bare`, where there is one."""
        if saves and op_name + SAVING in self.records:
            return self.records[op_name + SAVING]
        if bare and op_name + BARE in self.records:
            return self.records[op_name + BARE]
        return self.records.get(op_name, ())
