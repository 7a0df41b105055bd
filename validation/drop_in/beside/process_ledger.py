"""Who has a budget in this process, and what each of them holds: all sessions share this ledger.

A budget bounds the memory of the process, and not of one model. So what a session plans beside is
asked of here: what the open steps of other models keep, and their parameters, gradients and states
of optimizers. A member is the row of one session; what is gone from memory counts nowhere.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterable

import torch

from ..records.present_step import PresentStep
from ..records.step_calls import PartCall
from .held_state import HeldState, adam_bytes_of

_MOST_COLLECTED = 3  # times that cycles are looked for: other models may keep something always


class Member:
    """One model with a budget, as the others see it.

    Parameters
    ----------
    step
        Its running step.
    held
        What it holds.

    Attributes
    ----------
    number
        Tells it from all others that ever were.
    least_bytes : Callable[[], int]
        Gives about the least that its steps take.
    budget_bytes : Callable[[], int | None]
        Gives its budget, once it is known and where it is no share.
    uncounted_bytes
        The least budget of its steps beside what the loop holds that no plan counts.
    left
        Calls that are held through many steps without their backward.
    """

    def __init__(self, step: PresentStep, held: HeldState) -> None:
        self.step, self.held = step, held
        self.left: list[PartCall] = []
        self.uncounted_bytes = 0
        self.least_bytes: Callable[[], int] = lambda: 0
        self.budget_bytes: Callable[[], int | None] = lambda: None
        self.number = next(_numbers)
        self._num_collected = 0
        self._met: set[int] = set()  # others that no collection of cycles has freed
        held.beside = self
        _members.add(self)

    # -- the others -------------------------------------------------------------------------------

    def others(self) -> list[Member]:
        """The other members whose models are there still, on the same device if that is known."""
        if len(_members) == 1:  # asked for many times a step, and most loops have one model
            return []
        found = self._alive()
        if any(it.number not in self._met for it in found):
            gc.collect()  # perhaps a model that is gone but for a cycle
            found = self._alive()
            self._met |= {it.number for it in found}
        return found

    def _alive(self) -> list[Member]:
        mine = self.held.device
        found = [(it, it.held.device) for it in list(_members) if it is not self]
        alike = [it for it, device in found if device is not None and mine in (None, device)]
        return sorted(alike, key=lambda it: it.number)

    @property
    def all_numbers(self) -> list[int]:
        """The numbers of all that are there, this one among them."""
        return [self.number, *(it.number for it in self.others())]

    def larger_budget(self) -> int:
        """The largest budget of the others, if that is larger than this one; else 0."""
        mine = self.budget_bytes()
        found = max((it.budget_bytes() or 0 for it in self.others()), default=0)
        return found if mine is not None and found > mine else 0

    def most_uncounted_bytes(self) -> int:
        """The least budget for the steps of any, beside what the loop holds uncounted."""
        return max(it.uncounted_bytes for it in (self, *self.others()))

    @property
    def open_beside(self) -> frozenset[int]:
        """The numbers of those whose backward may still come."""
        return frozenset(it.number for it in self.others() if it.step.calls.is_open)

    @property
    def runs_in_threads(self) -> bool:
        """Whether a step of another one, by another thread, waits for its backward."""
        thread = self.step.thread
        opened = (it for it in self.others() if it.step.calls.is_open)
        return any(it.step.thread != thread for it in opened)

    # -- what their open steps keep ---------------------------------------------------------------

    def left_bytes(self) -> int:
        """Bytes that calls keep which are held through many steps, with what they were given."""
        self.left = [call for call in self.left if call.is_open]
        return sum(call.kept_bytes + call.part.input_bytes(call.binding) for call in self.left)

    def kept_by_others(self, read: dict[int, int]) -> int:
        """Bytes that open steps of other models keep, as a generator's while its critic runs.

        Parameters
        ----------
        read
            Bytes of the inputs by their place: outputs of other models among them count there.
        """
        kept = self._others_keep()
        if kept and self._num_collected < _MOST_COLLECTED:
            self._num_collected += 1
            gc.collect()  # models that are gone but for a cycle, as of an error that was caught
            kept = self._others_keep()
        if not kept:
            return 0
        made = self.made_beside()
        return max(0, kept - sum(size for place, size in read.items() if place in made))

    def _others_keep(self) -> int:
        others = self.others()
        kept = sum(call.kept_bytes for other in others for call in other.step.calls.opened)
        return kept + sum(other.left_bytes() for other in others)

    # -- what they hold from step to step ---------------------------------------------------------

    def lasting_beside(self) -> int:
        """Bytes of their parameters, buffers and optimizers, as far as they are none of this one's.

        On a CPU: a CUDA device tells what is allocated, and so all of it.
        """
        others = self._others_on_cpu()
        if not others:
            return 0
        found: dict[int, int] = {}
        optimizers: dict[int, int] = {}
        for other in others:
            found |= other.held.fixed_by_place()
            optimizers |= other.held.optimizers()
        mine, own = self.held.fixed_by_place(), self.held.optimizers()
        fixed = sum(size for place, size in found.items() if place not in mine)
        return fixed + sum(size for it, size in optimizers.items() if it not in own)

    def gradients_beside(self) -> int:
        """Bytes of their gradients at present."""
        others = self._others_on_cpu()
        if not others:
            return 0
        found: dict[int, int] = {}
        for other in others:
            found |= other.held.gradients()
        mine = self.held.gradients()
        return sum(size for place, size in found.items() if place not in mine)

    def places_beside(self) -> set[int]:
        """The addresses of their parameters, buffers, gradients and states of optimizers."""
        return {it for other in self._others_on_cpu() for it in other.held.own_places()}

    def made_beside(self) -> set[int]:
        """The addresses of the outputs of their open steps."""
        return {it for other in self.others() for it in other.step.calls.made()}

    def _others_on_cpu(self) -> list[Member]:
        device = self.held.device
        return [] if device is None or device.type != "cpu" else self.others()

    def adam_bytes(self) -> int:
        """Bytes of the states of Adam for what no optimizer has stepped, of any of the models."""
        helds = [self.held, *(other.held for other in self.others())]
        trained = {id(t): t for held in helds for t in held.never_stepped()}
        return adam_bytes_of(list(trained.values()))


_numbers = itertools.count()
_members: weakref.WeakSet[Member] = weakref.WeakSet()


def is_of_any(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether some of `tensors` are held by a model with a budget."""
    members = list(_members)
    return any(member.held.knows(it) for it in tensors for member in members)
