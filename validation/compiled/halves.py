"""What stays in its half of a step, in whatever order first runs come."""

from __future__ import annotations

from collections.abc import Collection

from ..capture.program import Program, refs


def keep_halves(program: Program, written: Collection[int] = ()) -> None:
    """Let ops with effects run in their half of the step.

    Whoever has the outputs finds the buffers and the generator as the forward leaves them.

    Parameters
    ----------
    written
        Values that code between the halves may write: the forward reads them in its half.
    """
    calls, seed = program.calls, program.calls[program.seed]
    given = {program.values[v].call for v in refs(seed.args)}
    effects = [i for i, call in enumerate(calls) if call.once or call.random]
    first = [i for i in effects if i < program.seed and i not in given]
    if written:
        first += [
            i
            for i, call in enumerate(calls[: program.seed])
            if not call.is_view and i not in given and program.reads_any(call, written)
        ]
    seed.tokens = tuple(dict.fromkeys((*seed.tokens, *first)))
    for i in effects:
        if i > program.seed and program.seed not in calls[i].tokens:
            calls[i].tokens += (program.seed,)
