"""Copies of forward values that the backward computes for itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ..capture.effects import insert_all
from ..capture.program import Call, Program, Ref, Storage, Value, map_refs, refs


class RecomputedValues:
    """Lets calls of `program` read copies of values, each computed just before its first reader.

    The copies stand in `program` once `insert` is called; until then, calls keep their places.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._inserted: list[tuple[int, Call]] = []

    def compute_again(self, expression: Collection[int], readers: Sequence[int]) -> None:
        """Make `readers`, in order, read copies of the storages in `expression`.

        Parameters
        ----------
        expression
            Storages, each written by one op of one output; views of them may have several.
        """
        made: dict[int, int] = {}
        for reader in readers:
            call = self.program.calls[reader]
            args, kwargs = self._copied((call.args, call.kwargs), expression, reader, made)
            call.args, call.kwargs = args, kwargs

    def _copied(
        self, tree: Any, expression: Collection[int], reader: int, made: dict[int, int]
    ) -> Any:
        """Arguments of `reader` on the copies; those that are new are computed before it."""
        program = self.program

        def copy_of(v: int) -> int:
            value = program.values[v]
            if value.storage not in expression:
                return v
            if v in made:
                return made[v]
            call = program.calls[value.call]
            args, kwargs = self._copied((call.args, call.kwargs), expression, reader, made)
            if call.is_view:
                source = next(iter(refs((args, kwargs))))
                home = program.values[source].storage
            else:
                home = len(program.storages)
                size = program.storages[value.storage].size_bytes
                program.storages.append(Storage(size, "computed"))
            copy = Call(f"{call.name}.again{reader}", call.target, args, kwargs)
            copy.is_view, copy.is_tuple = call.is_view, call.is_tuple
            for output in call.outputs:  # several, where it is a split
                its = program.values[output]
                made[output] = len(program.values)
                copy.outputs.append(made[output])
                program.values.append(Value(home, its.shape, its.stride, its.dtype, its.device))
            copy.phase = program.calls[reader].phase
            copy.module = call.module
            self._inserted.append((reader, copy))
            return made[v]

        return map_refs(tree, lambda v: Ref(copy_of(v)))

    def insert(self) -> bool:
        """Put the copies into the program; whether there are any."""
        program = self.program
        if not self._inserted:
            return False
        insert_all(program, self._inserted)
        for i, call in enumerate(program.calls):  # a view makes no storage
            if not call.is_view:
                for v in call.outputs:
                    if v >= 0:
                        program.storages[program.values[v].storage].call = i
        self._inserted = []
        return True
