"""Kinds of steps that have run and were not measured yet: a refusal of another kind counts them.

As of a loop that trains an actor and a critic in turn: their steps call other graphs, and one is
measured before the other. A budget that is named for the one alone would be refused by the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from types import MappingProxyType

import torch

from ..parts.part_sizes import Binding
from ..records.outside_code import OutsideBytes, most_of
from ..records.step_calls import StepCalls
from ..records.step_record import (
    NOTHING,
    Key,
    MadeInputs,
    StepKind,
    StepRecord,
    grown_bytes,
    scaled_bytes,
)
from .first_steps import guessed_bytes
from .known_steps import KnownSteps
from .line_calls import made_inputs
from .line_steps import LineSteps
from .ordered_line import least_budget

_MOST_KINDS = 16
"""Kinds that are remembered: a loop with more of them has new ones in any case."""
_MOST_MISSED = 8
"""Steps that may begin as one of such a kind and have fewer calls, before it comes no more."""
_NONE: Mapping[int, int] = MappingProxyType({})
_Calls = tuple[tuple[Key, ...], tuple[int, ...], frozenset[int]]
"""The calls of a step, the order of their halves, and the models whose steps were open."""


class UnmeasuredSteps:
    """The calls of such steps, and the least budget that they need."""

    def __init__(self, known: KnownSteps, lines: LineSteps) -> None:
        self._known, self._lines = known, lines
        self._seen: dict[_Calls, StepRecord] = {}
        self._missed: Counter[_Calls] = Counter()  # steps that have begun as one, and ended before
        self._coming: tuple[StepKind, Binding] | None = None

    def comes(self, kind: StepKind, binding: Binding) -> None:
        """A step of this `kind` begins at these sizes."""
        self._coming = kind, binding

    def see(self, calls: StepCalls, replaced: Mapping[int, int] = _NONE) -> None:
        """A step with these `calls` is over, all backwards among them.

        Parameters
        ----------
        replaced
            Indices of parts that it was the last to run, and of those that later ones run instead.
        """
        kind = calls.keys, calls.halves, calls.beside
        self._missed.update(it for it in self._seen if self._goes_on(it[0], calls.keys))
        self._missed.pop(kind, None)
        seen = self._seen.get(kind)
        if seen is not None and seen.bindings == tuple(call.binding for call in calls.rows):
            return  # nearly every step of a loop
        if len(self._seen) < _MOST_KINDS:
            found = replace(record_without_measurements(calls), order=calls.halves)
            self._keep(kind, self._with_parts(found, replaced))

    def replace(self, index: int, by: int) -> None:
        """Part `by` runs in the place of part `index` in later steps."""
        self._coming = None
        seen, self._seen = self._seen, {}
        for kind, record in seen.items():
            self._keep(kind, self._with_parts(record, {index: by}))

    def _keep(self, kind: _Calls, record: StepRecord | None) -> None:
        if record is not None:
            self._seen[record.keys, *kind[1:]] = record

    def _with_parts(self, record: StepRecord, replaced: Mapping[int, int]) -> StepRecord | None:
        """`record` with other parts in the place of those `replaced`, if their sizes are alike."""
        keys = []
        for key in record.keys:
            index = key[0]
            while index in replaced:
                index, before = replaced[index], index
                if self._known.parts[index].sizes.names != self._known.parts[before].sizes.names:
                    return None
            keys.append((index, key[1]))
        return replace(record, keys=tuple(keys))

    @property
    def is_empty(self) -> bool:
        """Whether all that have run were measured."""
        records = self._known.records
        return all(any(it.is_like(one) for one in records) for it in self._seen.values())

    def of_several(self) -> list[StepRecord]:
        """Those of several calls, without what the code around these takes."""
        sizes = self._known.largest
        return [
            record
            for record in self._seen.values()
            if len(record.keys) > 1 and all(index in sizes for index, _ in record.keys)
        ]

    def least_bytes(self, *, guesses: bool = True) -> int:
        """The least budget for those of these kinds that do not fit, as far as their calls tell it.

        0 where all fit.

        Parameters
        ----------
        guesses
            Whether it has room for the code around their graphs: of that between them only a copy
            of the generator's state is known, and of that behind the last forward a guess from the
            size of the outputs.
        """
        known = self._known
        assert known.budget_bytes is not None
        least = 0
        for record in (*self._seen.values(), *self._begun()):
            if any(record.is_like(other) for other in known.records):
                continue
            if any(index not in known.largest for index, _ in record.keys):
                continue
            taken = self.with_guesses(record) if guesses else record
            line = self._lines.least_line(taken)
            if line.divide(known.budget_bytes) is None:
                least = max(least, least_budget(line, known.budget_bytes))
        return least

    def _begun(self) -> list[StepRecord]:
        """The step that begins, as far as its first call tells it, if it is of no kind seen."""
        seen = {it.kind for it in (*self._seen.values(), *self._known.records)}
        if self._coming is None or self._coming[0] in seen:
            return []
        (index, beside), binding = self._coming
        self._known.see_sizes(index, binding)
        shared = self._known.parts[index].input_bytes(binding)
        nothing = (NOTHING,)
        return [StepRecord(((index, 0),), (binding,), (shared,), nothing, nothing, beside=beside)]

    def is_new(self, keys: tuple[Key, ...]) -> bool:
        """Whether steps were measured, and none that begins with these calls."""
        records = self._known.records
        return bool(records) and all(it.keys[: len(keys)] != keys for it in records)

    def may_go_on(self, keys: tuple[Key, ...]) -> bool:
        """Whether a step that has run and was not measured begins so, and has other calls then.

        That is calls that no step which was measured has, and so no plan has room for. Not one for
        which many steps have ended before these: it was the first of a loop, and comes no more.
        """
        return any(
            self._goes_on(kind[0], keys) and self._missed[kind] < _MOST_MISSED
            for kind in self._seen
        )

    def _goes_on(self, kind: tuple[Key, ...], keys: tuple[Key, ...]) -> bool:
        planned = self._known.numbers
        return kind[: len(keys)] == keys and any(key not in planned for key in kind)

    def with_code_of_others(self, record: StepRecord) -> StepRecord:
        """`record`, with the code around its graphs as steps of other kinds were measured.

        By place where one had as many calls, else the most of any place alike: between graphs,
        behind the last forward, behind a backward.
        """
        known, last = self._known.records, len(record.keys) - 1
        after_forward = [NOTHING] * (last + 1)
        after_backward = list(after_forward)
        for other in known:
            its_last = len(other.keys) - 1
            for i in range(last + 1):
                alike = [i] if its_last == last else range(its_last + 1)
                for j in [its_last] if i == last else [j for j in alike if j < its_last]:
                    found = self._as_there(other, j, other.after_forward, record, i)
                    after_forward[i] = most_of(after_forward[i], found)
                for j in alike:
                    found = self._as_there(other, j, other.after_backward, record, i)
                    after_backward[i] = most_of(after_backward[i], found)
        return replace(
            record,
            before=reduce(most_of, (other.before for other in known), NOTHING),
            after_forward=tuple(after_forward),
            after_backward=tuple(after_backward),
        )

    def _as_there(
        self, other: StepRecord, j: int, codes: Sequence[OutsideBytes], record: StepRecord, i: int
    ) -> OutsideBytes:
        """The code at place `j` of another step, at the sizes of place `i` of `record`."""
        outputs = self._output_bytes(other, j), self._output_bytes(record, i)
        found = [scaled_bytes(it, *outputs) for it in codes[j][:2]]
        if codes is other.after_forward and i + 1 < len(record.keys):
            inputs = self._made_inputs(other, j + 1), self._made_inputs(record, i + 1)
            found = [max(it, grown_bytes(it, *inputs)) for it in found]
        return OutsideBytes(*found)

    def _output_bytes(self, record: StepRecord, i: int) -> int:
        return self._known.parts[record.keys[i][0]].output_bytes(record.bindings[i])

    def _made_inputs(self, record: StepRecord, i: int) -> MadeInputs:
        return made_inputs(record, i, self._known.parts[record.keys[i][0]], record.bindings[i])

    def with_guesses(self, record: StepRecord) -> StepRecord:
        """`record`, with a loss as it is guessed, and a generator's state between graphs."""
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
        beside=calls.beside,
    )


def with_loss(record: StepRecord, num_bytes: int) -> StepRecord:
    """`record`, in which the code between forward and backward takes so many bytes."""
    taken = OutsideBytes(num_bytes, num_bytes)
    return replace(record, after_forward=(*record.after_forward[:-1], taken))
