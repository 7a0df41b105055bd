"""Cheap values of the forward that the backward recomputes beside the ops that read them."""

from __future__ import annotations

from ..capture.effects import insert_all
from ..capture.program import Call, Program, Ref, Storage, Value, map_refs, refs
from ..capture.to_graph import result_storages
from .clusters import SMALL_SHARE, StorageReaders
from .fusible import elementwise_target, fusible_target

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
    _Inliner(program).run()


class _Inliner:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.reading = StorageReaders(program)
        self.results = set(result_storages(program))
        self.inserted: list[tuple[int, Call]] = []

    def run(self) -> None:
        program, reading = self.program, self.reading
        backward: dict[int, list[int]] = {}
        for storage, readers in reading.readers.items():
            backward[storage] = [r for r in readers if r > program.seed]
        for storage, maker in list(reading.maker.items()):
            readers = backward.get(storage, [])
            if maker > program.seed or not readers or storage in self.results:
                continue
            if not all(fusible_target(program.calls[r].target) for r in readers):
                continue
            expression = self._expression(storage, backward)
            if not expression:
                readers = reading.readers[storage]
                if all(fusible_target(program.calls[r].target) for r in readers):
                    expression = self._expression(storage, backward, exchange=True)
            for reader in readers if expression else ():
                self._compute_again(storage, set(expression), reader)
        insert_all(program, self.inserted)
        for i, call in enumerate(program.calls):  # a view makes no storage
            if not call.is_view:
                for v in call.outputs:
                    if v >= 0:
                        program.storages[program.values[v].storage].call = i

    def _expression(
        self, storage: int, backward: dict[int, list[int]], exchange: bool = False
    ) -> list[int]:
        """The storages to recompute for `storage`; empty where that is not cheap.

        With `exchange`, one tensor may be kept instead of `storage`.
        """
        program, reading = self.program, self.reading
        size = program.storages[storage].size_bytes
        found = {storage: None}
        stack = [storage]
        while stack:
            part = stack.pop()
            call = program.calls[reading.maker[part]]
            fixed = call.random or call.once or call.is_tuple or bool(call.tokens)
            if fixed or not elementwise_target(call.target) or len(found) > MOST_OPS:
                if exchange and part != storage and self._is_reduced(part, size):
                    exchange = False
                    del found[part]
                    continue
                return []
            for v in refs((call.args, call.kwargs)):
                needed = program.values[v].storage
                held = program.storages[needed]
                kept = needed not in reading.maker or held.size_bytes * SMALL_SHARE <= size
                kept = kept or any(r not in reading.readers[storage] for r in backward[needed])
                if not kept and needed not in found:
                    found[needed] = None
                    stack.append(needed)
        return list(found)

    def _is_reduced(self, storage: int, most_bytes: int) -> bool:
        """Whether some reader reduces `storage`, so that none can be written in its place."""
        calls, readers = self.program.calls, self.reading.readers[storage]
        targets = [calls[r].target for r in readers]
        reduced = any(fusible_target(t) and not elementwise_target(t) for t in targets)
        return reduced and self.program.storages[storage].size_bytes <= most_bytes

    def _compute_again(self, storage: int, expression: set[int], reader: int) -> None:
        """Make `reader` read a copy of `storage` that is recomputed just before it."""
        program = self.program
        made: dict[int, int] = {}

        def copy_of(v: int) -> int:
            value = program.values[v]
            if value.storage not in expression:
                return v
            if v in made:
                return made[v]
            call = program.calls[value.call]
            args = map_refs(call.args, lambda w: Ref(copy_of(w)))
            kwargs = map_refs(call.kwargs, lambda w: Ref(copy_of(w)))
            if call.is_view:
                source = next(iter(refs((args, kwargs))))
                home = program.values[source].storage
            else:
                home = len(program.storages)
                size = program.storages[value.storage].size_bytes
                program.storages.append(Storage(size, "computed"))
            program.values.append(Value(home, value.shape, value.stride, value.dtype, value.device))
            made[v] = len(program.values) - 1
            copy = Call(f"{call.name}.again{reader}", call.target, args, kwargs)
            copy.outputs, copy.is_view = [made[v]], call.is_view
            copy.phase = program.calls[reader].phase
            copy.module = call.module
            self.inserted.append((reader, copy))
            return made[v]

        call = program.calls[reader]
        call.args = map_refs(call.args, lambda v: Ref(copy_of(v)))
        call.kwargs = map_refs(call.kwargs, lambda v: Ref(copy_of(v)))
