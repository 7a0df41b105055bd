"""Cheap values of the forward that the backward recomputes beside the ops that read them."""

from __future__ import annotations

from collections.abc import Callable

from ..capture.program import Program, refs
from ..capture.to_graph import result_storages
from .clusters import SMALL_SHARE, FusionClusters, StorageReaders
from .fusible import elementwise, fusible
from .recomputed_values import RecomputedValues

MOST_OPS = 8
"""The most ops of an expression that is recomputed instead of kept."""


def inline_cheap(program: Program) -> None:
    """Let backward ops recompute values of the forward, where nothing more is kept for that.

    A value is recomputed if every backward op that reads it can be fused with its expression: a few
    elementwise ops on tensors that backward reads anyway, or that are small. The value need then
    not be saved, at the price of some arithmetic inside of a loop that runs anyway; torch.compile's
    partitioner does the same.

    A value that all of its readers can recompute, from one tensor of at most its size whose
    reductions it needs, is exchanged for that tensor: logarithms of probabilities for the logits.
    As many bytes are kept, the value is never written, and logits and logarithms need no room at
    the same time. O(size of the program).
    """
    _Inliner(program, StorageReaders(program)).run()


def inline_beside(program: Program, clusters: FusionClusters) -> bool:
    """Let groups of the backward recompute what follows from other tensors that they read.

    A kernel, as a convolution's backward, must be given such a value, so that `inline_cheap` leaves
    it alone. A group behind the kernel need not: the sign of a ReLU follows from what its norm
    read. The value is then free once the kernel has run, and the group loads less.

    Parameters
    ----------
    clusters
        Of `program`, whose calls move: there are other clusters if anything changes.

    Returns
    -------
    bool
        Whether anything changed.
    """
    return _Inliner(program, clusters.reading).run_beside(clusters)


class _Inliner:
    def __init__(self, program: Program, reading: StorageReaders) -> None:
        self.program, self.reading = program, reading
        self.results = set(result_storages(program))
        self.copies = RecomputedValues(program)

    def run(self) -> None:
        program, reading = self.program, self.reading
        backward: dict[int, list[int]] = {}
        for storage, readers in reading.readers.items():
            backward[storage] = [r for r in readers if r > program.seed]
        for storage, maker in list(reading.maker.items()):
            readers = backward.get(storage, [])
            if maker > program.seed or not readers or storage in self.results:
                continue
            if not all(fusible(program, program.calls[r]) for r in readers):
                continue

            def is_kept(needed: int, own: list[int] = reading.readers[storage]) -> bool:
                return any(r not in own for r in backward[needed])

            expression = self._expression(storage, is_kept)
            if not expression:
                readers = reading.readers[storage]
                if all(fusible(program, program.calls[r]) for r in readers):
                    expression = self._expression(storage, is_kept, exchange=True)
            for reader in readers if expression else ():
                self.copies.compute_again(set(expression), [reader])
        self.copies.insert()

    def run_beside(self, clusters: FusionClusters) -> bool:
        program, reading = self.program, self.reading
        for ops in list(clusters.members.values()):
            if ops[0] <= program.seed or not clusters.can_fuse(ops[0]):
                continue
            own = set(ops)
            read = {s for op in ops for s in reading.reads[op]}
            for storage in sorted(read & reading.maker.keys(), key=reading.maker.__getitem__):
                readers = [r for r in reading.readers[storage] if r > program.seed]
                inside = [r for r in readers if r in own]
                last = all(r in own or r < inside[0] for r in readers)
                made = reading.maker[storage] < program.seed and storage not in self.results
                if not (made and last and len(inside) < len(readers)):
                    continue
                read.discard(storage)
                expression = self._expression(storage, read.__contains__)
                if expression:
                    self.copies.compute_again(set(expression), inside)
                else:
                    read.add(storage)
        return self.copies.insert()

    def _expression(
        self, storage: int, is_kept: Callable[[int], bool], exchange: bool = False
    ) -> list[int]:
        """The storages to recompute for `storage`; empty where that is not cheap.

        Parameters
        ----------
        is_kept
            Whether a storage that a call makes is there anyway.
        exchange
            Whether one tensor may be kept instead of `storage`.
        """
        program, reading = self.program, self.reading
        size = program.storages[storage].size_bytes
        found = {storage: None}
        stack = [storage]
        while stack:
            part = stack.pop()
            call = program.calls[reading.maker[part]]
            fixed = call.random or call.once or call.is_tuple or bool(call.tokens)
            fixed = fixed or program.reads_doubted(call)
            if fixed or not elementwise(program, call) or len(found) > MOST_OPS:
                if exchange and part != storage and self._is_reduced(part, size):
                    exchange = False
                    del found[part]
                    continue
                return []
            for v in refs((call.args, call.kwargs)):
                needed = program.values[v].storage
                held = program.storages[needed]
                kept = needed not in reading.maker or held.size_bytes * SMALL_SHARE <= size
                if not (kept or is_kept(needed)) and needed not in found:
                    found[needed] = None
                    stack.append(needed)
        return list(found)

    def _is_reduced(self, storage: int, most_bytes: int) -> bool:
        """Whether some reader reduces `storage`, so that none can be written in its place."""
        program = self.program
        calls = [program.calls[r] for r in self.reading.readers[storage]]
        reduced = any(fusible(program, c) and not elementwise(program, c) for c in calls)
        return reduced and program.storages[storage].size_bytes <= most_bytes
