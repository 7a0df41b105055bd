"""The requests that the ops of a recorded step made of an allocator, one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SAVING = "+"
"""Suffix for the record of a forward run that keeps its saved bundle: its requests differ."""


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
        Record by op name; for a forward that keeps its saved bundle, by its name and `SAVING`.
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
        """The blocks that die with `tensor`, whichever record requests them."""
        return self._by_holder.get(tensor, [])

    def record_of(self, op_name: str, *, saves: bool) -> tuple[int, ...]:
        """The record of a run of the op; with `saves` that of a run that keeps its bundle."""
        if saves and op_name + SAVING in self.records:
            return self.records[op_name + SAVING]
        return self.records.get(op_name, ())
