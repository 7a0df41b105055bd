"""The ranks that run a graph of the backend together, as its tensors are spread over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from ..ranks import ALONE, Ranks
from ..ranks.members import mesh_ranks_of, ranks_among
from ..ranks.step_words import StepWord, agreed, shapes_of
from .session import Session


class RanksOfGraph:
    """The ranks that a graph's messages go between.

    Which schedules they run, each decides for itself: all send the same messages in one order. At
    the start of a call they say what they are about to do, so that none waits for another that does
    something else, and a rank that fails, or whose step does not fit, ends the step of all.
    """

    def __init__(self, ranks: Ranks, session: Session) -> None:
        self._ranks, self._session = ranks, session

    @classmethod
    def of(cls, inputs: Sequence[Any], session: Session) -> RanksOfGraph:
        """Those of the tensors among the `inputs` of a graph that are spread over ranks.

        Where ranks begin steps together, those of the session, which have said what they do.
        """
        if session.begins_together:
            return cls(session.ranks, session)
        members = mesh_ranks_of(inputs)
        ranks = ranks_among(members) if members else ALONE
        if not ranks.alone and session.ranks.alone:
            session.ranks = ranks
        return cls(ranks, session)

    def tracing(self) -> AbstractContextManager[None]:
        """Around what makes a part of the graph."""
        return self._ranks.running("trace a graph")

    def running(self, arguments: Sequence[Any]) -> AbstractContextManager[None]:
        """Around a call with these arguments."""
        if self._ranks.alone:
            return nullcontext()
        return (
            self._session.telling() if self._session.begins_together else self._together(arguments)
        )

    @contextmanager
    def _together(self, arguments: Sequence[Any]) -> Iterator[None]:
        does = "trains" if torch.is_grad_enabled() else "runs without gradients"
        with self._ranks.leaving(), self._ranks.running("run a step"):
            word = StepWord(does, inputs=shapes_of(arguments), split_with=self._ranks.members)
            try:
                agreed(self._ranks.gather(word, "start a step"), self._ranks.members)
            except Exception:  # as of a rank that does something else: no step is left open
                self._session.forward_fails()
                raise
            yield
