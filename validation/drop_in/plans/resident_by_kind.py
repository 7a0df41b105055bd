"""What is resident beside the steps of a loop, by their kind.

A loop with steps of several kinds holds other things beside each: a critic's gradients, but no
generator's; what a generator keeps, while its critic runs. Plans for one kind leave no room for
what stands beside another. As a step begins, its kind is told by its first part alone.
"""

from __future__ import annotations

from typing import NamedTuple


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
    """The most bytes seen beside steps of each kind, which their first part tells.

    Attributes
    ----------
    room_bytes
        Bytes that plans leave to the allocator, beside steps of every kind.
    """

    def __init__(self) -> None:
        self.room_bytes = 0
        self._seen: dict[int, Before] = {}
        self._planned: dict[int, Before] = {}
        self._present: int | None = None

    # -- what is seen -----------------------------------------------------------------------------

    def begin(self, first: int, found: Before) -> int | None:
        """A step begins with a call of part `first`, beside what was `found`.

        Returns
        -------
        int or None
            By how many bytes that exceeds what the plans for its kind were made beside; ``None``
            where none were.
        """
        self._present = first
        self._seen[first] = found.most_with(self._seen.get(first, _NOTHING))
        planned = self._planned.get(first)
        return None if planned is None else self._of(first).exceeds(planned)

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

    def saved(self) -> tuple[dict[int, Before], int | None]:
        """What `restore` brings back."""
        return dict(self._seen), self._present

    def restore(self, saved: tuple[dict[int, Before], int | None]) -> None:
        """Forget what was seen since it was `saved`."""
        self._seen, self._present = dict(saved[0]), saved[1]

    # -- what plans count -------------------------------------------------------------------------

    def plan(self, first: int | None = None) -> None:
        """Plans are made beside what was seen: for all kinds, or for those that begin so."""
        for it in self._seen if first is None else (first,):
            self._planned[it] = self._of(it)

    def of(self, first: int) -> Before:
        """What plans for steps that begin with part `first` count; the room is resident."""
        return self._of(first).with_more(self.room_bytes)

    @property
    def now(self) -> Before:
        """What those for steps like the present one count."""
        return _NOTHING if self._present is None else self.of(self._present)

    @property
    def most_bytes(self) -> int:
        """Most bytes that are resident beside steps of any kind, without the room."""
        return max((self._of(it).resident_bytes for it in self._seen), default=0)

    def _of(self, first: int) -> Before:
        """Of a kind that was never seen to begin, the most of all kinds."""
        lasting = max((it.lasting_bytes for it in self._seen.values()), default=0)
        found = self._seen.get(first)
        if found is None:
            found = _NOTHING
            for other in self._seen.values():
                found = found.most_with(other)
        return found._replace(lasting_bytes=lasting)
