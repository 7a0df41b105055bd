"""The messages of a graph: ops for which other ranks wait."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from schedsim.errors import UnsupportedError

from ..capture.program import Program
from ..capture.program_builder import communicates
from ..torch_private.prompt_messages import is_silent


def messages_of(program: Program) -> list[str]:
    """The messages of `program` in their order, each with its settings.

    Not with shapes: replicas may have other batches, and ranks that split layers say at the start
    of a step which they have.

    Raises
    ------
    UnsupportedError
        One of them cannot be measured, and schedules with it not compared, without being sent.
    """
    found = []
    for call in program.calls:
        if not communicates(call.target):
            continue
        if not is_silent(call.target):
            raise UnsupportedError(
                f"all ranks run its op {call.name} together, and one of them cannot measure it"
            )
        if call.is_view:  # waits for one
            continue
        # The last argument names the group, which each rank may name otherwise.
        settings = [it for it in call.args[:-1] if isinstance(it, int | str)]
        found.append(f"{call.target}({settings})")
    return found


def said_messages(messages: Sequence[str]) -> str:
    """A short text that differs where `messages` do."""
    digest = hashlib.sha256("\n".join(messages).encode()).hexdigest()[:8]
    return f"{len(messages)} ({digest})"
