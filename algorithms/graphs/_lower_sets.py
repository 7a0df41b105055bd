"""Lower sets of the forward part, as bit masks and as arrays for the dynamic program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from schedsim.errors import PlannerLimitError

from ._forward_part import ForwardPart

if TYPE_CHECKING:
    from ._lower_set_kernel import SetArrays

MAX_TIME_STEPS = 4096
MAX_CELLS = 6_000_000
"""Most entries of the table over lower sets and time steps; times are rounded to stay below it."""


@dataclass(frozen=True)
class LowerSets:
    """A family of lower sets (closed under predecessors), by ascending number of ops.

    The empty set is the first, all ops of the part the last.

    Attributes
    ----------
    masks : list of int
        Bit v is set where op v belongs to the set.
    words : (num_sets, num_words) uint64
        The same bits, 64 a word.
    set_bytes, set_steps : (num_sets,) int64
        Bytes written by, and time steps of, the ops of each set.
    after_bytes : (num_sets,) int64
        Bytes of the ops outside the set that read from it, and of what else those ops read.
    edge_start, edge_op : (num_sets + 1,), (num_edges,) int64
        Boundary of each set: the ops in it that have a reader outside.
    op_bytes, op_steps : (num_ops,) int64
        Bytes and time steps of each op.
    """

    masks: list[int]
    words: NDArray[np.uint64]
    set_bytes: NDArray[np.int64]
    set_steps: NDArray[np.int64]
    after_bytes: NDArray[np.int64]
    edge_start: NDArray[np.int64]
    edge_op: NDArray[np.int64]
    op_bytes: NDArray[np.int64]
    op_steps: NDArray[np.int64]

    @property
    def arrays(self) -> SetArrays:
        """The arrays that the compiled program reads."""
        from ._lower_set_kernel import SetArrays

        return SetArrays(*(getattr(self, name) for name in SetArrays._fields))


def reachable_masks(part: ForwardPart) -> list[int]:
    """Each op with all its ancestors, the empty set and the whole; at most num_ops + 2 sets."""
    ancestors: list[int] = []
    before = _predecessors(part)
    for op in range(part.num_ops):
        mask = 1 << op
        for other in _members(before[op]):
            mask |= ancestors[other]
        ancestors.append(mask)
    return _by_size({0, (1 << part.num_ops) - 1, *ancestors})


def all_masks(part: ForwardPart, max_sets: int) -> list[int]:
    """Every lower set of the part, as bit masks.

    Raises
    ------
    PlannerLimitError
        There are more than `max_sets`.
    """
    before = _predecessors(part)
    after = [0] * part.num_ops
    for producer, reader in part.edges.tolist():
        after[producer] |= 1 << reader
    sources = sum(1 << op for op in range(part.num_ops) if not before[op])
    # With each set go the ops that can join it, so that no other op is tried.
    found = {0}
    stack = [(0, sources)]
    while stack:
        mask, ready = stack.pop()
        for op in _members(ready):
            larger = mask | 1 << op
            if larger in found:
                continue
            found.add(larger)
            if len(found) > max_sets:
                raise PlannerLimitError(
                    f"the forward part has more than {max_sets:,} lower sets",
                    hint='family="approximate" looks at no more than there are ops',
                )
            joins = sum(1 << o for o in _members(after[op]) if not before[o] & ~larger)
            stack.append((larger, ready & ~(1 << op) | joins))
    return _by_size(found)


def lower_sets(part: ForwardPart, masks: list[int], max_steps: int = MAX_TIME_STEPS) -> LowerSets:
    """The family `masks`, with what the dynamic program needs of each set.

    Times are counted in at most about `max_steps` steps, fewer for very many sets.
    """
    steps = _time_steps(part.op_time_s, min(max_steps, max(64, MAX_CELLS // len(masks))))
    before, after = _predecessors(part), [0] * part.num_ops
    for producer, reader in part.edges.tolist():
        after[producer] |= 1 << reader
    num_words = max(1, -(-part.num_ops // 64))
    raw = b"".join(mask.to_bytes(8 * num_words, "little") for mask in masks)
    words = np.frombuffer(raw, dtype="<u8").reshape(len(masks), num_words).astype(np.uint64)
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, : part.num_ops]
    sizes = part.op_bytes
    edge_start, edge_op, after_bytes = [0], [], []
    for mask in masks:
        outside = 0
        for op in _members(mask):
            if after[op] & ~mask:
                edge_op.append(op)
                outside |= after[op] & ~mask
        edge_start.append(len(edge_op))
        beside = 0
        for op in _members(outside):
            beside |= before[op] & ~mask
        members = [*_members(outside), *_members(beside)]
        after_bytes.append(int(sizes[members].sum()) if members else 0)
    return LowerSets(
        masks=masks,
        words=words,
        set_bytes=bits @ sizes,
        set_steps=bits @ steps,
        after_bytes=np.array(after_bytes, dtype=np.int64),
        edge_start=np.array(edge_start, dtype=np.int64),
        edge_op=np.array(edge_op, dtype=np.int64),
        op_bytes=sizes,
        op_steps=steps,
    )


def _time_steps(times: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """Times as whole steps: exact where they are few multiples of one number, rounded otherwise."""
    total = float(times.sum())
    if not total:
        return np.zeros(times.size, dtype=np.int64)
    if np.all(times == np.floor(times)) and total < 2**53:
        whole = times.astype(np.int64)
        whole //= np.gcd.reduce(whole)
        if whole.sum() <= most:
            return whole
    rounded = np.rint(times * (most / total)).astype(np.int64)
    return np.maximum(rounded, (times > 0).astype(np.int64))


def _predecessors(part: ForwardPart) -> list[int]:
    before = [0] * part.num_ops
    for producer, reader in part.edges.tolist():
        before[reader] |= 1 << producer
    return before


def _by_size(masks: set[int]) -> list[int]:
    return sorted(masks, key=lambda mask: (mask.bit_count(), mask))


def _members(mask: int) -> list[int]:
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found
