"""What is there before a step: the model's state, results of earlier steps, other models' calls."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch

from ...measure.cuda import requested_bytes
from ..parts.output_uses import Result, alive_bytes, by_place, watched
from ..parts.part_sizes import Binding
from ..parts.planned_part import PlannedPart
from ..plans.resident_by_kind import Before
from ..records.present_step import PresentStep
from ..records.step_calls import PartCall
from .earlier_results import EarlierResults
from .held_state import HeldState
from .inputs_around import InputsAround
from .made_between import MadeBetween
from .process_ledger import Member

_FEW = 2**-10
"""Share of the budget up to which results of earlier steps are a few, as their losses."""
_ROOM_BYTES = 256
"""Room for a few results, and for four times as many where they outgrow it, and so on.

They grow from step to step, and no step is to be planned anew for each.
"""


class ResidentBytes:
    """Counts what is resident beside the steps of one model.

    Parameters
    ----------
    step
        The running step.
    held
        What the model holds.

    Attributes
    ----------
    earlier : EarlierResults
        Results of earlier steps, which the loop may hold.
    made : MadeBetween
        What else the loop holds of them.
    watched_bytes
        Bytes of those that are watched in the present step.
    member : Member
        The model among all with a budget.
    around : InputsAround
        What functions around the graphs are given.
    others_bytes
        What open steps of other models keep, as the last step began.
    """

    def __init__(self, step: PresentStep, held: HeldState) -> None:
        self._step, self._held = step, held
        self.earlier, self.made = EarlierResults(), MadeBetween()
        self.around = InputsAround()
        self.watched_bytes = 0
        self.member = Member(step, held)
        self.others_bytes = 0
        self._handed: tuple[Result, ...] = ()  # inputs of the model's next forward

    def hand(self, inputs: Any) -> dict[int, int]:
        """The model is called with `inputs`; their bytes by address."""
        self._handed = watched(inputs)
        return by_place(self._handed)

    def before(
        self,
        part: PlannedPart,
        arguments: list[Any],
        binding: Binding,
        budget_bytes: int | None,
        *,
        results_pass: bool,
    ) -> Before:
        """What is there as a step begins with a call of `part`.

        Parameters
        ----------
        budget_bytes
            Results of earlier steps are a few beside it; ``None`` where they do not count.
        results_pass
            Whether results of earlier steps are gone before the first backward.
        """
        inputs, step = watched(part.inputs_among(arguments)), self._step
        read, handed = by_place(inputs), by_place(self._handed)
        step.made_before = sum(size for it, size in read.items() if it not in handed)
        step.given, step.inputs, self._handed = handed | read, (*self._handed, *inputs), ()
        others = sum(size for place, size in step.given.items() if place not in read)
        self.others_bytes = self.member.kept_by_others(read)
        lasting = self._held.lasting_bytes
        found = self._held.total_bytes + others + self.others_bytes + self.left_bytes()
        stale, few = self._stale_bytes(budget_bytes)
        passing = stale if results_pass else 0
        found += stale - passing + few
        if part.device == "cuda":
            device = next(t.device for t in arguments if isinstance(t, torch.Tensor) and t.is_cuda)
            requested = requested_bytes(device)
            found = max(found, requested - part.input_bytes(binding) - passing)
        return Before(lasting, max(0, found - lasting), passing)

    def _stale_bytes(self, budget_bytes: int | None) -> tuple[int, int]:
        """Bytes of results of earlier steps that are there; or room for them, if they are few."""
        self.watched_bytes = 0
        if budget_bytes is None:
            self.earlier.stale = []
            return 0, 0
        few = few_bytes_of(budget_bytes)
        self.earlier.add(self.made.look(self._counted_places))
        found = self.earlier.begin_step(self._step.given, lambda: self._held.places, few)
        unseen = self.made.unseen_bytes if self.made.num_bytes > few else 0
        if self.earlier.stale:
            self.watched_bytes = found
            return found + unseen, 0
        return unseen, room_for(found)

    def unwatched_bytes(self, budget_bytes: int | None) -> int:
        """Bytes of results of the step before that count as it begins, wherever they are."""
        is_few = self.made.num_bytes <= few_bytes_of(budget_bytes)
        return 0 if is_few else self.made.unwatched_bytes

    def _counted_places(self) -> set[int]:
        return self._held.counted_places() | self.earlier.places()

    def places_but(self, given: Collection[int]) -> set[int]:
        """The addresses of all that counts as a step begins, beside what it is `given`."""
        made = self.made.places | self.member.made_beside()
        outputs = {it.place for it in self._outputs()}
        return {*given, *self._counted_places(), *made, *outputs}

    def leave(self, calls: Iterable[PartCall]) -> None:
        """These calls count as resident from now on."""
        self.member.left += calls

    def left_bytes(self) -> int:
        """Bytes that calls keep which are held through many steps, with what they were given."""
        return self.member.left_bytes()

    def around_bytes(self) -> int:
        """Bytes that the present step was given, and of its outputs that are there still."""
        step = self._step
        found = alive_bytes(it for it in self._outputs() if it.place not in step.given)
        return sum(step.given.values()) + found

    def things_around(self) -> tuple[Result, ...]:
        """What the present step was given, and its outputs, that are there still."""
        return tuple(it for it in (*self._step.inputs, *self._outputs()) if not it.is_gone)

    def _outputs(self) -> Iterator[Result]:
        return (it for call in self._step.calls.rows for it in call.results if not it.is_gone)


def few_bytes_of(budget_bytes: int | None) -> int:
    """Bytes that are a few beside this budget; none before it is known."""
    return int((budget_bytes or 0) * _FEW)


def room_for(num_bytes: int) -> int:
    """Bytes that are set aside for `num_bytes`, which may become more."""
    room = _ROOM_BYTES if num_bytes else 0
    while room < num_bytes:
        room *= 4
    return room
