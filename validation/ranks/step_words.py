"""What ranks that run one schedule tell each other at the start of a step, and what follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from schedsim.errors import SchedsimError

from .failures import agree_on

Forms = tuple[str, ...]
"""The short forms of a step on all ranks, in their order."""


@dataclass(frozen=True)
class StepWord:
    """What one rank says.

    Attributes
    ----------
    does
        What it is about to do, in words: "runs a step", "evaluates".
    form
        Short form of what its plan depends on.
    autocast
        The autocast that it runs within, in words.
    num_changes
        Changes of plans by the caller so far.
    fitting
        Numbers of its plans whose state of Python is the present one, by the forms of all ranks
        that they were made for.
    """

    does: str
    form: str = ""
    autocast: str = ""
    num_changes: int = 0
    fitting: Mapping[Forms, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Agreed:
    """What follows for all: the forms of this step, and the plans that fit on every rank."""

    forms: Forms
    numbers: frozenset[int]


def agreed(words: Sequence[StepWord], members: Sequence[int]) -> Agreed:
    """What follows from the words of all `members`.

    Raises
    ------
    SchedsimError
        Some ranks do something else than others, in which they would wait for each other for ever;
        the message names a rank, and what differs.
    """
    _same([word.does for word in words], members, "call the model on all ranks in the same mode")
    _same(
        [f"runs {word.autocast}" if word.autocast else "" for word in words],
        members,
        "enter autocast on all ranks, or on none: FSDP2 orders its collectives by it",
    )
    changes = [word.num_changes for word in words]
    if len(set(changes)) > 1:
        late, early = changes.index(min(changes)), changes.index(max(changes))
        raise _error(
            f"rank {members[late]} goes on with an earlier plan than rank {members[early]}",
            "call replan, use and apply on all ranks, as they run one schedule",
        )
    forms = tuple(word.form for word in words)
    numbers = [frozenset(word.fitting.get(forms, ())) for word in words]
    return Agreed(forms, frozenset.intersection(*numbers))


def _same(said: Sequence[str], members: Sequence[int], hint: str) -> None:
    for rank, its in zip(members, said, strict=True):
        if its != said[0]:
            raise _error(f"rank {rank} {its}, while rank {members[0]} {said[0]}", hint)


def _error(message: str, hint: str) -> Any:
    return agree_on(SchedsimError(message, hint=hint))
