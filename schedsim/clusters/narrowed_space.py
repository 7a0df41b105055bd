"""What settings that are given take out of the space of a search, in words.

A setting that goes with some degrees alone leaves the others out: gradients that are reduced in 16
bits go with no pipeline. What is found is then the fastest of fewer choices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from ..checks.cluster_flags import flag_of
from ..workloads.architecture import Architecture
from .degrees import Degrees
from .fabric import Fabric
from .search_space import SearchSpace
from .training import Training

_Choice = tuple[Degrees, Training]
_CHOSEN: dict[str, Callable[[Degrees, Training], Any]] = {
    "tensor": lambda degrees, _: degrees.tensor,
    "pipeline": lambda degrees, _: degrees.pipeline,
    "context": lambda degrees, _: degrees.context,
    "expert": lambda degrees, _: degrees.expert,
    "num_micro_batches": lambda _, training: training.num_micro_batches,
    # A step without a pipeline has no order of micro-batches.
    "schedule": lambda degrees, training: training.schedule if degrees.pipeline > 1 else None,
    "zero_stage": lambda _, training: training.zero_stage,
}
_GIVEN_SIZES = ("seq", "batch")


def narrowings(space: SearchSpace, model: Architecture, fabric: Fabric) -> tuple[str, ...]:
    """A line for each setting, or few together, without which `space` would have more candidates.

    Complexity
    ----------
    O(candidates * settings that are given) checks.
    """
    given = {
        one.name: one.default
        for one in fields(Training)
        if one.name not in (*_CHOSEN, *_GIVEN_SIZES)
        and getattr(space.training, one.name) != one.default
    }
    if not given:
        return ()
    kept: list[_Choice] = []
    lost: dict[tuple[str, ...], list[_Choice]] = {}
    for degrees, training in space.every(model, fabric):
        if space.refusal(model, degrees, training) is None:
            kept.append((degrees, training))
            continue

        def fits(without: dict[str, Any], choice: _Choice = (degrees, training)) -> bool:
            return space.refusal(model, choice[0], replace(choice[1], **without)) is None

        if fits(given):
            lost.setdefault(_least(given, fits), []).append((degrees, training))
    return tuple(
        f"{' and '.join(map(flag_of, names))} leave{'s' * (len(names) == 1)} "
        f"{_what_is_left(kept, some)}"
        for names, some in lost.items()
    )


def _least(given: dict[str, Any], fits: Callable[[dict[str, Any]], bool]) -> tuple[str, ...]:
    """Settings none of which may stay beside the others, if the choice is to fit."""
    without = dict(given)
    for name in given:
        rest = {other: value for other, value in without.items() if other != name}
        if fits(rest):
            without = rest
    return tuple(without)


def _what_is_left(kept: list[_Choice], lost: list[_Choice]) -> str:
    words, left_out = [], lost
    for name, of in _CHOSEN.items():
        left = {of(*one) for one in kept}
        gone = {of(*one) for one in left_out} - left
        if not gone:
            continue
        if gone == {1}:
            words.append(f"{flag_of(name)} {min(left)} or more")
        else:
            named = sorted(one for one in left if one is not None)
            words.append(f"{flag_of(name)} {' or '.join(map(str, named))}")
        left_out = [one for one in left_out if of(*one) in left]
    return ", ".join(words) or f"{len(kept)} of {len(kept) + len(lost)} candidates"
