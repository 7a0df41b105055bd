"""What is resident beside the steps of a loop, by their kind.

A loop with steps of several kinds holds other things beside each: a critic's gradients, but no
generator's; what a generator keeps, while its critic runs. Plans for one kind leave no room for
what stands beside another. As a step begins, its kind is told by its first part, and by the models
whose steps are open.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from ..records.step_record import StepKind


class Before(NamedTuple):
    """Bytes that exist before a step, the inputs of its first part excluded.

    Attributes
    ----------
    lasting_bytes
        What is there beside steps of every kind: parameters, states of optimizers.
    own_bytes
        What else is there throughout this step.
    passing_bytes
        Results of an earlier step, which the forwards find and the backwards do not.
    """

    lasting_bytes: int
    own_bytes: int
    passing_bytes: int = 0

    @property
    def resident_bytes(self) -> int:
        """What is there throughout."""
        return self.lasting_bytes + self.own_bytes

    def with_more(self, num_bytes: int) -> Before:
        """So many bytes more, that are there throughout."""
        return Before(self.lasting_bytes, self.own_bytes + num_bytes, self.passing_bytes)

    def exceeds(self, other: Before) -> int:
        """By how many bytes more is there than in `other`."""
        resident = max(0, self.resident_bytes - other.resident_bytes)
        return resident + max(0, self.passing_bytes - other.passing_bytes)

    def most_with(self, other: Before) -> Before:
        """The most of both."""
        return Before(*map(max, self, other))


_NOTHING = Before(0, 0)


class ResidentByKind:
    """The most bytes seen beside steps of each kind.

    Parameters
    ----------
    measured
        Gives the kinds of which a step was measured. Plans for these are those of the others, too,
        that begin with the same part.

    Attributes
    ----------
    room_bytes
        Bytes that plans leave to the allocator, beside steps of every kind.
    """

    def __init__(self, measured: Callable[[], Collection[StepKind]] = tuple) -> None:
        self.room_bytes = 0
        self._measured = measured
        self._seen: dict[StepKind, Before] = {}
        self._planned: dict[StepKind, Before] = {}
        self._present: StepKind | None = None

    # -- what is seen -----------------------------------------------------------------------------

    def begin(self, kind: StepKind, found: Before, *, anew: bool = False) -> int | None:
        """A step of this `kind` begins, beside what was `found`.

        Parameters
        ----------
        anew
            Whether what was seen beside such steps before is not so any more.

        Returns
        -------
        int or None
            By how many bytes that exceeds what the plans for its kind were made beside; ``None``
            where none were.
        """
        self._present = kind
        before = _NOTHING if anew else self._seen.get(kind, _NOTHING)
        self._seen[kind] = found.most_with(before)
        planned = [it for it in self.planned_as(kind) if it in self._planned]
        return max((self._of(it).exceeds(self._planned[it]) for it in planned), default=None)

    def raise_present(self, resident_bytes: int) -> None:
        """So many bytes are resident beside the present step, at least."""
        if self._present is None:
            return
        found = self._of(self._present)
        more = max(0, resident_bytes - found.resident_bytes)
        self._seen[self._present] = found.with_more(more)

    def forget_passing(self) -> None:
        """Results of earlier steps do not go: they are resident."""
        self._seen = {it: found._replace(passing_bytes=0) for it, found in self._seen.items()}

    def saved(self) -> tuple[dict[StepKind, Before], StepKind | None]:
        """What `restore` brings back."""
        return dict(self._seen), self._present

    def restore(self, saved: tuple[dict[StepKind, Before], StepKind | None]) -> None:
        """Forget what was seen since it was `saved`."""
        self._seen, self._present = dict(saved[0]), saved[1]

    # -- what plans count -------------------------------------------------------------------------

    def planned_as(self, kind: StepKind) -> list[StepKind]:
        """The kinds whose plans those of this `kind` follow: its own, if it was measured."""
        measured = self._measured()
        alike = [] if kind in measured else [it for it in measured if it.first == kind.first]
        return alike or [kind]

    def plan(self, kind: StepKind | None = None) -> None:
        """Plans are made beside what was seen: for all kinds, or for this one."""
        for it in self._seen if kind is None else self.planned_as(kind):
            self._planned[it] = self._of(it)

    def of(self, kind: StepKind) -> Before:
        """What plans for steps of this `kind` count; the room is resident."""
        return self._of(kind).with_more(self.room_bytes)

    @property
    def now(self) -> Before:
        """What those for steps like the present one count."""
        return _NOTHING if self._present is None else self.of(self._present)

    @property
    def most_bytes(self) -> int:
        """Most bytes that are resident beside steps of any kind, without the room."""
        return max((self._of(it).resident_bytes for it in self._seen), default=0)

    def _of(self, kind: StepKind) -> Before:
        """Of a kind that was never seen to begin, the most of all kinds."""
        lasting = max((it.lasting_bytes for it in self._seen.values()), default=0)
        counted = list(self._seen)
        if kind in self._seen:
            counted = [it for it in counted if it == kind or self._follows(it, kind)]
        found = _NOTHING
        for it in counted:
            found = found.most_with(self._seen[it])
        return found._replace(lasting_bytes=lasting)

    def _follows(self, kind: StepKind, other: StepKind) -> bool:
        """Whether steps of `kind` run by the plans of the `other`, as none was measured."""
        if kind.first != other.first or kind.beside == other.beside:
            return False
        measured = self._measured()
        return other in measured and kind not in measured
