"""Moments of a rank's step at which it may hold most: where a backward begins."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from operator import ge

import numpy as np
from numpy.typing import NDArray

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


@dataclass(frozen=True, eq=False)
class MomentTable:
    """The moments of a rank: the fields of `BackwardMoment` as arrays, a row for each moment."""

    stage: NDArray[np.int64]
    in_flight: NDArray[np.int64]
    gathered: NDArray[np.int64]
    summed: NDArray[np.int64]
    num_outputs: NDArray[np.int64]


@cache
def moment_tables(
    schedule: str, num_ranks: int, count: int, num_chunks: int
) -> tuple[MomentTable, ...]:
    """`moments_of` as arrays, for each rank."""
    return tuple(
        MomentTable(
            *(
                np.array([getattr(one, field.name) for one in rank], dtype=np.int64)
                for field in fields(MomentTable)
            )
        )
        for rank in moments_of(schedule, num_ranks, count, num_chunks)
    )


@cache
def moments_of(
    schedule: str, num_ranks: int, count: int, num_chunks: int
) -> list[list[BackwardMoment]]:
    """The moments of each rank that no other of its moments covers.

    Notes
    -----
    O(actions + moments x moments found).
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
    seen: list[dict[tuple[int, ...], None]] = [{} for _ in stages]  # in the order of time
    for action in order:
        k = place[action.stage]
        if action.kind == "F":
            in_flight[k] += 1
            gathered[k] = True
            num_outputs += k == len(stages) - 1
        elif action.kind == "B":
            seen[k][*in_flight, *gathered, *summed, num_outputs] = None
            in_flight[k] -= 1
            gathered[k] = gathered[k] and action.micro < last
        if action.kind == ("W" if split else "B"):
            summed[k] = action.micro < last
    found = []
    for k, moments in enumerate(seen):
        for held in _not_covered(list(moments)):
            flight, rest = held[: len(stages)], held[len(stages) : -1]
            flags = tuple(map(bool, rest))
            cut = len(stages)
            found.append(BackwardMoment(k, flight, flags[:cut], flags[cut:], held[-1]))
    return found


def _not_covered(moments: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Those of which no other has as much of everything, in their order."""
    found: list[tuple[int, ...]] = []
    # What covers a moment has a larger sum, and is covered by none or by one that was found.
    for one in sorted(moments, key=sum, reverse=True):
        if not any(all(map(ge, other, one)) for other in found):
            found.append(one)
    kept = set(found)
    return [one for one in moments if one in kept]
