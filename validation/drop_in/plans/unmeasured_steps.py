"""Kinds of steps that have run and were not measured yet: a refusal of another kind counts them.

As of a loop that trains an actor and a critic in turn: their steps call other graphs, and one is
measured before the other. A budget that is named for the one alone would be refused by the other.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ..records.outside_code import OutsideBytes
from ..records.step_calls import StepCalls
from ..records.step_record import NOTHING, Key, StepRecord
from .first_steps import guessed_bytes
from .known_steps import KnownSteps
from .line_steps import LineSteps
from .ordered_line import least_budget

_MOST_KINDS = 16
"""Kinds that are remembered: a loop with more of them has new ones in any case."""


class UnmeasuredSteps:
    """The calls of such steps, and the least budget that they need."""

    def __init__(self, known: KnownSteps, lines: LineSteps) -> None:
        self._known, self._lines = known, lines
        self._seen: dict[tuple[tuple[Key, ...], tuple[int, ...]], StepRecord] = {}

    def see(self, calls: StepCalls) -> None:
        """A step with these `calls` is over, all backwards among them."""
        kind = calls.keys, calls.halves
        seen = self._seen.get(kind)
        if seen is not None and seen.bindings == tuple(call.binding for call in calls.rows):
            return  # nearly every step of a loop
        if len(self._seen) < _MOST_KINDS:
            self._seen[kind] = replace(record_without_measurements(calls), order=calls.halves)

    def forget(self, index: int) -> None:
        """Forget the steps in which part `index` ran: no other will."""
        kept = self._seen.items()
        self._seen = {it: record for it, record in kept if all(key[0] != index for key in it[0])}

    def least_bytes(self) -> int:
        """The least budget for all of these kinds, as far as their calls tell it; 0 without any.

        Of the code between graphs only a copy of the generator's state is known, and of that
        behind the last forward a guess from the size of the outputs.
        """
        known = self._known
        assert known.budget_bytes is not None
        least = 0
        for record in self._seen.values():
            if any(record.is_like(other) for other in known.records):
                continue
            if any(index not in known.largest for index, _ in record.keys):
                continue
            line = self._lines.least_line(self._with_guesses(record))
            least = max(least, least_budget(line, known.budget_bytes))
        return least

    def _with_guesses(self, record: StepRecord) -> StepRecord:
        state = OutsideBytes(torch.get_rng_state().nbytes, 0)
        part, binding = self._known.parts[record.keys[-1][0]], record.bindings[-1]
        loss = guessed_bytes(part, binding) + part.given_bytes(binding)
        last = OutsideBytes(max(loss, state.most), 0)
        between = (state,) * (len(record.keys) - 1)
        return replace(record, before=state, after_forward=(*between, last))


def record_without_measurements(calls: StepCalls) -> StepRecord:
    """The record of a step with these `calls`, in which the code between them takes nothing."""
    nothing = (NOTHING,) * len(calls.rows)
    trained = tuple(call.trained for call in calls.rows)
    return StepRecord(
        calls.keys,
        tuple(call.binding for call in calls.rows),
        tuple(call.shared_bytes for call in calls.rows),
        nothing,
        nothing,
        trained=trained if all(trained) else (),
    )


def with_loss(record: StepRecord, num_bytes: int) -> StepRecord:
    """`record`, in which the code between forward and backward takes so many bytes."""
    taken = OutsideBytes(num_bytes, num_bytes)
    return replace(record, after_forward=(*record.after_forward[:-1], taken))
