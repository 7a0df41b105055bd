"""Which ops become one: clusters of fusible ops, merged where a tensor between them vanishes."""

from __future__ import annotations

import heapq
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import accumulate

import torch

from ..capture.program import Program, refs
from ..capture.to_graph import result_storages
from .fusible import fusible
from .group_sizes import GroupSize

MOST_OPS = 64
"""Most ops of a cluster: larger clusters compile slowly and gain nothing."""

MOST_KERNELS_BETWEEN = 4
"""Most kernels over which the parts of a sum of gradients are kept, to add them up at once."""

SMALL_SHARE = 8
"""A tensor this many times smaller than another costs little beside it."""


@dataclass
class StorageReaders:
    """The op that makes each storage, and the ops that read it; views are looked through.

    Attributes
    ----------
    ops
        Indices of the calls that are ops.
    reads, writes
        For each op, the storages that it reads and writes (static ones too).
    maker
        Storage -> the op that makes it.
    readers
        Storage -> the ops that read it.
    """

    program: Program
    ops: list[int] = field(default_factory=list)
    reads: dict[int, list[int]] = field(default_factory=dict)
    writes: dict[int, list[int]] = field(default_factory=dict)
    maker: dict[int, int] = field(default_factory=dict)
    readers: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        program = self.program
        for i, call in enumerate(program.calls):
            if call.is_view:
                continue
            self.ops.append(i)
            values = program.values
            self.reads[i] = list(
                dict.fromkeys(values[v].storage for v in refs((call.args, call.kwargs)))
            )
            self.writes[i] = list(dict.fromkeys(values[v].storage for v in call.outputs if v >= 0))
            for storage in self.writes[i]:
                self.maker[storage] = i
            for storage in self.reads[i]:
                self.readers.setdefault(storage, []).append(i)


class FusionClusters:
    """Fusible ops of one half of a step, merged as long as no two clusters need each other.

    Parameters
    ----------
    program
        A decomposed program.
    size
        How much room a merged cluster may take: smaller groups are slower, and fit smaller budgets.
    """

    def __init__(self, program: Program, *, size: GroupSize = GroupSize.LARGE) -> None:
        self.program, self.size = program, size
        self.reading = StorageReaders(program)
        self.of: dict[int, int] = {i: i for i in self.reading.ops}  # op -> first op of its cluster
        self.members: dict[int, list[int]] = {i: [i] for i in self.reading.ops}
        self.results = set(result_storages(program))
        self.after: dict[int, set[int]] = {i: set() for i in self.reading.ops}  # op -> ops
        reading = self.reading
        for i in reading.ops:
            for storage in reading.reads[i]:
                if storage in reading.maker:
                    self.after[reading.maker[storage]].add(i)
            for token in program.calls[i].tokens:
                self.after[token].add(i)
        for i in reading.ops:  # the op that draws the seed stands between the halves
            if i < program.seed:
                self.after[i].add(program.seed)
            elif i > program.seed:
                self.after[program.seed].add(i)
        kernels = [i for i in reading.ops if not self.can_fuse(i)]
        self._kernel_bytes = max((self._room_bytes([i]) for i in kernels), default=0)

    def can_fuse(self, op: int) -> bool:
        """Whether `op` may join other ops."""
        call = self.program.calls[op]
        fixed = call.random or call.tokens  # a group with an op that runs once runs once
        return not fixed and fusible(self.program, call) and min(call.outputs, default=-1) >= 0

    def same_half(self, a: int, b: int) -> bool:
        """Whether both ops stand on the same side of the hand-over to autograd."""
        return (a < self.program.seed) == (b < self.program.seed)

    def merge_vanishing(self) -> None:
        """Merge each op with all readers of its output, if possible: the output then vanishes."""
        reading = self.reading
        kernels = list(accumulate(not self.can_fuse(i) for i in reading.ops))
        self.kernels_to = dict(zip(reading.ops, kernels, strict=True))
        by_size = sorted(
            reading.maker, key=lambda s: (-self.program.storages[s].size_bytes, reading.maker[s])
        )
        for _ in range(2):
            for storage in by_size:
                maker, readers = reading.maker[storage], reading.readers.get(storage, [])
                if storage in self.results or not readers or not self.can_fuse(maker):
                    continue
                if self._gathers_slowly(maker, readers):
                    continue
                if all(self.can_fuse(r) and self.same_half(maker, r) for r in readers):
                    self.merge([maker, *readers])

    def _gathers_slowly(self, maker: int, readers: list[int]) -> bool:
        """Whether a sum of gradients would wait for parts that are made much later.

        Layers or steps in time that share a weight each make a part of its gradient. Added up one
        by one, each part is soon free; in one group, all would be kept until the last one is made.
        """
        if not self.program.calls[maker].is_gradient_sum:
            return False
        ops = [op for i in (maker, *readers) for op in self.members[self.of[i]]]
        return self.kernels_to[max(ops)] - self.kernels_to[min(ops)] > MOST_KERNELS_BETWEEN

    def merge_reductions(self) -> None:
        """Merge reductions of one tensor that follow from each other, as the sum behind a maximum.

        Each of them alone would read the tensor again, and all their results are small: no plan
        gains by running one without the others.
        """
        for storage, maker in sorted(self.reading.maker.items(), key=lambda item: item[1]):
            for reader in self.reading.readers.get(storage, ()):
                if self._reread(maker, reader):
                    self.merge([maker, reader])

    def merge_updates(self) -> None:
        """Merge what makes new contents of buffers alone with the group that it follows from.

        As a batch norm's running mean follows from the mean. The call of a group takes longer than
        so small a loop. That group runs once in any case.
        """
        for op in self.reading.ops:
            if self.program.calls[op].target is not torch.ops.aten.copy_.default:
                continue
            for storage in self.reading.reads[op]:
                maker = self.reading.maker.get(storage)
                source = -1 if maker is None else self._only_source(self.members[self.of[maker]])
                if maker is not None and source >= 0 and self.same_half(source, maker):
                    self.merge([source, maker])

    def _only_source(self, ops: list[int]) -> int:
        """An op of the one cluster, which runs once, that a cluster for updates reads; else -1."""
        reading, calls, inside = self.reading, self.program.calls, set(ops)
        update = torch.ops.aten.copy_.default
        for op in ops:
            for storage in reading.writes[op]:
                others = set(reading.readers.get(storage, ())) - inside
                if any(calls[reader].target is not update for reader in others):
                    return -1
        read = {reading.maker.get(s, -1) for op in ops for s in reading.reads[op]} - inside - {-1}
        heads = {self.of[maker] for maker in read}
        if len(heads) != 1 or not all(map(self.can_fuse, (*ops, *read))):
            return -1
        [head] = heads
        return head if any(calls[op].once for op in self.members[head]) else -1

    def _reread(self, maker: int, reader: int) -> bool:
        """Whether the cluster of `reader` reads what that of `maker` read, and both reduce it."""
        reading, storages = self.reading, self.program.storages
        if not (self.can_fuse(maker) and self.can_fuse(reader) and self.same_half(maker, reader)):
            return False
        one, other = self.of[maker], self.of[reader]
        both = [*self.members[one], *self.members[other]]
        made = {s for op in both for s in reading.writes[op]}
        given = {s for op in self.members[one] for s in reading.reads[op]} - made
        again = {s for op in self.members[other] for s in reading.reads[op]}
        largest = max((storages[s].size_bytes for s in given), default=0)
        large = {s for s in given if storages[s].size_bytes * SMALL_SHARE > largest}
        left = sum(storages[s].size_bytes for s in made if self._leaves(s, both))
        return one != other and 0 < largest >= left * SMALL_SHARE and large <= again

    def _leaves(self, storage: int, ops: Collection[int]) -> bool:
        """Whether ops other than `ops` read `storage`, or it is a result."""
        readers = self.reading.readers.get(storage, ())
        return storage in self.results or any(r not in ops for r in readers)

    def merge(self, ops: list[int]) -> bool:
        """Merge `ops` into one cluster, unless it would need itself through another cluster."""
        heads = list(dict.fromkeys(self.of[op] for op in ops))
        if len(heads) == 1:
            return True
        union = [op for head in heads for op in self.members[head]]
        if len(union) > MOST_OPS or self._widens(heads, union):
            return False
        if self._returns(heads, union):
            return False
        head = min(heads)
        self.members[head] = sorted(union)
        for op in union:
            self.of[op] = head
        for other in heads:
            if other != head:
                del self.members[other]
        return True

    def _widens(self, heads: list[int], union: list[int]) -> bool:
        """Whether `union` needs more bytes at once than `size` allows and than each of its parts.

        A sum of many gradients holds two of them when they are added up one by one, and all of them
        in one group.
        """
        if self.size is GroupSize.LARGE:
            return False
        room = self._room_bytes(union)
        if self.size is GroupSize.MEDIUM and room <= self._kernel_bytes:
            return False
        return room > max(self._room_bytes(self.members[head]) for head in heads)

    def _room_bytes(self, ops: list[int]) -> int:
        """Bytes of the inputs and outputs of a cluster that schedules make."""
        reading, storages, inside = self.reading, self.program.storages, set(ops)
        made = {s for op in ops for s in reading.writes[op]}
        read = {s for op in ops for s in reading.reads[op]} - made
        given = sum(storages[s].size_bytes for s in read if storages[s].kind == "computed")
        return given + sum(storages[s].size_bytes for s in made if self._leaves(s, inside))

    def _returns(self, heads: list[int], union: list[int]) -> bool:
        """Whether a path out of `union` leads back into it."""
        inside = set(heads)
        stack = [self.of[n] for op in union for n in self.after[op] if self.of[n] not in inside]
        seen = set(stack)
        while stack:
            for op in self.members[stack.pop()]:
                for n in self.after[op]:
                    head = self.of[n]
                    if head in inside:
                        return True
                    if head not in seen:
                        seen.add(head)
                        stack.append(head)
        return False

    def ordered(self) -> list[list[int]]:
        """Clusters in an order that the data allows, each near the place of its last op."""
        waits = dict.fromkeys(self.members, 0)
        follow: dict[int, set[int]] = {head: set() for head in self.members}
        for head, ops in self.members.items():
            for op in ops:
                follow[head].update(self.of[n] for n in self.after[op])
            follow[head].discard(head)
        for heads in follow.values():
            for head in heads:
                waits[head] += 1
        ready = [(self.members[h][-1], h) for h, num in waits.items() if not num]
        heapq.heapify(ready)
        found = []
        while ready:
            _, head = heapq.heappop(ready)
            found.append(self.members[head])
            for n in follow[head]:
                waits[n] -= 1
                if not waits[n]:
                    heapq.heappush(ready, (self.members[n][-1], n))
        assert len(found) == len(self.members)
        return found
