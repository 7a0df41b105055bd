"""Ops whose results nobody reads: the parts of an op that make an output which is not wanted."""

from __future__ import annotations

from ..capture.program import Program, refs
from ..capture.to_graph import result_storages
from .fusible import fusible_target


def drop_dead_ops(program: Program) -> None:
    """Leave the fusible ops out whose outputs are no results and that no other op reads.

    A group of such ops alone would return nothing. O(size of the program).
    """
    values, storages = program.values, program.storages
    needed = {*result_storages(program), *(values[v].storage for v in program.outputs)}
    dead: set[int] = set()
    for i in reversed(range(len(program.calls))):
        call = program.calls[i]
        if call.is_view:
            continue
        written = {values[v].storage for v in call.outputs if v >= 0}
        pure = fusible_target(call.target) and not (call.random or call.tokens)
        if pure and not written & needed:
            dead.add(i)
        else:
            needed |= {values[v].storage for v in refs((call.args, call.kwargs))}
    if not dead:
        return
    for i, call in enumerate(program.calls):
        homes = [values[v].storage for v in call.outputs if v >= 0]
        if call.is_view and any(storages[home].call in dead for home in homes):
            dead.add(i)
    kept = [i for i in range(len(program.calls)) if i not in dead]
    moved = {old: new for new, old in enumerate(kept)}
    program.calls[:] = [program.calls[i] for i in kept]
    for call in program.calls:
        call.tokens = tuple(moved[token] for token in call.tokens if token in moved)
    for value in values:
        value.call = moved.get(value.call, -1)
    for storage in storages:
        storage.call = moved.get(storage.call, -1)
    program.seed = moved[program.seed]
