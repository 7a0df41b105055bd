"""Classes of schedules over which bounds hold, ordered by inclusion."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

_REPEATS = re.compile(r"(.*), at most (\d+) repeats? of an op")
_ROUNDS = re.compile(r"(.*), (one|\d+) rounds? of repeats in that order before each")
_RULED = ", kept and recomputed as asked"
_PARTITIONS = re.compile(r"(.*) into (\d+) stages")


@dataclass(frozen=True, slots=True)
class Scope:
    """A class of schedules; ``a <= b`` if every schedule of `a` is a schedule of `b`.

    A bound over a scope holds over every scope within it. A proven least budget over a scope is at
    most that of every scope within it. ``str`` gives the scope in words.

    Parameters
    ----------
    order
        ``"fixed"``: first runs keep the workload's order; repeated runs stand anywhere.
    persistent
        A stored activation of a chain stays until its own backward.
    copies
        Tensors may be copied over the link.
    variants
        The variants that are allowed may be chosen.
    most_repeats
        Largest number of repeats of one op; ``None`` for no limit.
    rounds
        Rounds of repeats, in order, before each first run; ``None`` for no limit.
    partition
        For a pipeline: ``"this"`` partition, or the number of stages of any partition. ``None`` for
        a single workload.
    ruled
        The schedules follow the given rules on what is kept and what is recomputed.
    other
        Words of a class that this version does not know; no other class is within it.

    Examples
    --------
    >>> PERSISTENT <= FIXED_ORDER <= ANY_SCHEDULE, COPIES <= ANY_SCHEDULE
    (True, False)
    >>> print(Scope.parse("fixed order of first runs"))
    fixed order of first runs
    """

    order: Literal["any", "fixed"] = "any"
    persistent: bool = False
    copies: bool = False
    variants: bool = False
    most_repeats: int | None = None
    rounds: int | None = None
    partition: Literal["this"] | int | None = None
    ruled: bool = False
    other: str = ""

    def covers(self, other: Scope) -> bool:
        """Whether every schedule of `other` belongs to this class."""
        return (
            self.other == other.other
            and (self.order == "any" or other.order == "fixed")
            and self.persistent <= other.persistent
            and self.copies >= other.copies
            and self.variants >= other.variants
            and self.ruled <= other.ruled
            and _allows(self.most_repeats, other.most_repeats)
            and _allows(self.rounds, other.rounds)
            and (self.partition == other.partition)
        )

    def __le__(self, other: Scope) -> bool:
        return other.covers(self)

    def __lt__(self, other: Scope) -> bool:
        return self != other and other.covers(self)

    def __str__(self) -> str:
        text = self._of_chain() if self.partition is None else self._of_pipeline()
        return self.other or text + _RULED * self.ruled

    def _of_chain(self) -> str:
        if self.persistent:
            return "persistent schedules" + " with the variants allowed" * self.variants
        fixed, limited = self.order == "fixed", self.most_repeats is not None
        text = "fixed order of first runs" if fixed else "any order" if limited else "any schedule"
        if self.copies:
            text += f"{',' * fixed} with copies on this link"
        if self.most_repeats is not None:
            text += f", at most {self.most_repeats} repeat{'s' * (self.most_repeats != 1)} of an op"
        if self.rounds is not None:
            rounds = "one round" if self.rounds == 1 else f"{self.rounds} rounds"
            text += f", {rounds} of repeats in that order before each"
        return text

    def _of_pipeline(self) -> str:
        if self.partition != "this":
            persistent = "persistent recomputation in this order"
            return f"{persistent}, any partition into {self.partition} stages"
        if self.persistent:
            return "persistent recomputation in this order and partition"
        return "any schedule of this partition"

    @classmethod
    def parse(cls, text: str) -> Scope:
        """The class that `text` names, in the words that `str` writes."""
        known = _BY_TEXT.get(text)
        if known is not None:
            return known
        if text.endswith(_RULED):
            return _checked(replace(cls.parse(text.removesuffix(_RULED)), ruled=True), text)
        if match := _ROUNDS.fullmatch(text):
            rounds = 1 if match[2] == "one" else int(match[2])
            return _checked(replace(cls.parse(match[1]), rounds=rounds), text)
        if match := _REPEATS.fullmatch(text):
            base = ANY_SCHEDULE if match[1] == "any order" else cls.parse(match[1])
            return _checked(replace(base, most_repeats=int(match[2])), text)
        if match := _PARTITIONS.fullmatch(text):
            return _checked(cls("fixed", persistent=True, partition=int(match[2])), text)
        return cls(other=text)


def _checked(scope: Scope, text: str) -> Scope:
    return scope if str(scope) == text else Scope(other=text)


def _allows(most: int | None, limit: int | None) -> bool:
    return most is None or (limit is not None and limit <= most)


ANY_SCHEDULE = Scope()
FIXED_ORDER = Scope("fixed")
"""Schedules whose first runs keep the workload's order; repeated runs may stand anywhere."""
PERSISTENT = Scope("fixed", persistent=True)
PERSISTENT_VARIANTS = Scope("fixed", persistent=True, variants=True)
COPIES = Scope(copies=True)
COPIES_IN_ORDER = Scope("fixed", copies=True)
THIS_PARTITION = Scope(partition="this")
PERSISTENT_IN_PARTITION = Scope("fixed", persistent=True, partition="this")

_BY_TEXT = {
    str(scope): scope
    for scope in (
        ANY_SCHEDULE,
        FIXED_ORDER,
        PERSISTENT,
        PERSISTENT_VARIANTS,
        COPIES,
        COPIES_IN_ORDER,
        THIS_PARTITION,
        PERSISTENT_IN_PARTITION,
    )
}


def common(scopes: list[Scope]) -> Scope:
    """The scope among `scopes` that lies within all others; any schedule if there is none.

    Examples
    --------
    >>> print(common([ANY_SCHEDULE, PERSISTENT]), "|", common([COPIES, PERSISTENT_VARIANTS]))
    persistent schedules | any schedule
    """
    least = [scope for scope in scopes if not any(other < scope for other in scopes)]
    return least[0] if len(set(least)) == 1 else ANY_SCHEDULE
