"""What ranks that run one schedule tell each other at the start of a step, and what follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from schedsim.errors import SchedsimError

from ..torch_private.pytrees import tree_leaves
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
    inputs
        The shapes of what it is given.
    split_with
        The ranks with which it computes each layer together, itself among them; may be none.
    """

    does: str
    form: str = ""
    autocast: str = ""
    num_changes: int = 0
    fitting: Mapping[Forms, tuple[int, ...]] = field(default_factory=dict)
    inputs: str = ""
    split_with: tuple[int, ...] = ()


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
    _same_inputs(words, members)
    forms = tuple(word.form for word in words)
    numbers = [frozenset(word.fitting.get(forms, ())) for word in words]
    return Agreed(forms, frozenset.intersection(*numbers))


def _same(said: Sequence[str], members: Sequence[int], hint: str) -> None:
    for rank, its in zip(members, said, strict=True):
        if its != said[0]:
            raise _error(f"rank {rank} {its}, while rank {members[0]} {said[0]}", hint)


def _same_inputs(words: Sequence[StepWord], members: Sequence[int]) -> None:
    given = {rank: word.inputs for rank, word in zip(members, words, strict=True)}
    for rank, word in zip(members, words, strict=True):
        for other in word.split_with:
            if given.get(other, word.inputs) != word.inputs:
                raise _error(
                    f"rank {other} is given {given[other]}, while rank {rank} is given "
                    f"{word.inputs}, and both compute each layer together",
                    "give the ranks of one tensor-parallel group the same batch",
                )


def shapes_of(given: Any) -> str:
    """The shapes and types of the tensors in `given`, in words."""
    tensors = (it for it in tree_leaves(given) if isinstance(it, Tensor))
    rows = [f"{tuple(it.shape)} {str(it.dtype).removeprefix('torch.')}" for it in tensors]
    return ", ".join(rows) or "no tensor"


def _error(message: str, hint: str) -> Any:
    return agree_on(SchedsimError(message, hint=hint))
