"""Moments of a rank's step at which it may hold most: where a backward begins."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ..pipelines.orders import Action, make_order


@dataclass(frozen=True, slots=True)
class BackwardMoment:
    """The beginning of a backward, told for each stage of the rank, by its place among them.

    Attributes
    ----------
    stage
        Place of the stage whose backward begins.
    in_flight
        Micro-batches whose forward has run and whose backward has not; this one counts.
    gathered
        Whether a stage has begun, and not run its last backward.
    summed
        Whether a stage has gradients of earlier micro-batches, which later ones are added to.
    num_outputs
        Micro-batches that have passed the last stage of this rank.
    """

    stage: int
    in_flight: tuple[int, ...]
    gathered: tuple[bool, ...]
    summed: tuple[bool, ...]
    num_outputs: int

    def covers(self, other: BackwardMoment) -> bool:
        """Whether everything that is there at the other moment is there now too."""
        return self.stage == other.stage and all(
            one >= two for one, two in zip(self._all, other._all, strict=True)
        )

    @property
    def _all(self) -> tuple[int, ...]:
        return (*self.in_flight, *self.gathered, *self.summed, self.num_outputs)


@cache
def moments_of(
    schedule: str, num_ranks: int, count: int, num_chunks: int
) -> list[list[BackwardMoment]]:
    """The moments of each rank that no other of its moments covers.

    Notes
    -----
    O(actions + moments^2).
    """
    if num_ranks == 1:
        orders = [[Action(kind, 0, micro) for micro in range(count) for kind in "FB"]]
    else:
        orders = [list(one) for one in make_order(schedule, num_ranks, count, num_chunks)]
    return [_of_rank(order) for order in orders]


def _of_rank(order: list[Action]) -> list[BackwardMoment]:
    stages = sorted({action.stage for action in order})
    place = {stage: k for k, stage in enumerate(stages)}
    split = any(action.kind == "W" for action in order)
    last = max(action.micro for action in order)
    in_flight, gathered = [0] * len(stages), [False] * len(stages)
    summed, num_outputs = [False] * len(stages), 0
    found = dict[BackwardMoment, None]()
    for action in order:
        k = place[action.stage]
        if action.kind == "F":
            in_flight[k] += 1
            gathered[k] = True
            num_outputs += k == len(stages) - 1
        elif action.kind == "B":
            found[
                BackwardMoment(k, tuple(in_flight), tuple(gathered), tuple(summed), num_outputs)
            ] = None
            in_flight[k] -= 1
            gathered[k] = gathered[k] and action.micro < last
        if action.kind == ("W" if split else "B"):
            summed[k] = action.micro < last
    every = list(found)
    return [one for one in every if not any(two is not one and two.covers(one) for two in every)]
