"""One graph as several parts: for gradients that come in other strides than its outputs have."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch

from schedsim import Schedule
from schedsim.errors import SchedsimError

from ..guards.plan_variants import RoundingWarning
from ..op_level.emit import Halves
from ..torch_private import joint_graphs as private

if TYPE_CHECKING:
    from .session import Session
    from .traced_part import TracedPart

Strides = tuple[tuple[int, ...], ...]
"""For each gradient that a part is given, its strides."""

Trace = Callable[
    [Sequence[Any], Mapping[int, tuple[int, ...]]], tuple[Callable[..., Any], "TracedPart | None"]
]
"""Traces a graph for examples of its arguments, and for the strides of gradients by output.

It returns what Dynamo calls, and the part behind it.
"""

_MOST_LAYOUTS = 4


class GradientLayouts:
    """What Dynamo calls for one graph: a part for each layout of the gradients of its outputs.

    AOTAutograd traces a backward for gradients with the strides of the outputs, and copies those
    that come in other strides. The products behind the copy sum in another order than those of the
    plain step. So the graph is traced again for the strides that come, at the first backward in
    which they come: the forward is the same one, and what it has kept is handed to the new
    backward. Later calls run by the new part.

    Parameters
    ----------
    trace, examples
        The function that traced the graph, and the arguments that it was traced for.
    call, part
        What it returned.
    """

    def __init__(
        self,
        session: Session,
        trace: Trace,
        examples: Sequence[Any],
        call: Callable[..., Any],
        part: TracedPart,
    ) -> None:
        self._session, self._trace, self._call, self._part = session, trace, call, part
        self._examples: list[Any] | None = None
        with suppress(Exception):  # of a tensor that cannot be without memory
            self._examples = private.without_memory(examples)
        self._autocast = autocast_as_here()
        self._parts: dict[Strides, TracedPart | None] = {part.given_strides: part}
        self._taken: dict[tuple[TracedPart, int, Strides], tuple[TracedPart, Halves] | None] = {}
        part.layouts = self

    def __call__(self, *arguments: Any) -> Any:
        """Call the graph by the part in use."""
        return self._call(*arguments)

    def backward_of(
        self, part: TracedPart, number: int, given: list[Any]
    ) -> tuple[TracedPart, Halves]:
        """The part and the code for gradients like these, after a forward of `part`.

        Where no other part takes over what the forward by schedule `number` has kept, `given` is
        copied into the strides for which `part` was traced.
        """
        own = part, part.halves_of(number)
        strides = tuple(it.stride() for it in given)
        if _equal(strides, part.given_strides, given):
            return own
        if strides not in self._parts and not self._session.is_rehearsing:
            self._parts[strides] = self._another(strides)
        other, key = self._parts.get(strides), (part, number, strides)
        if other is not None and key not in self._taken:
            self._taken[key] = _taken_over(part, number, other)
        found = self._taken.get(key)
        if found is not None:
            return found
        if not self._session.is_rehearsing:
            self._say_rounded(strides)
        put_in_strides(given, part.given_strides)
        return own

    def _another(self, strides: Strides) -> TracedPart | None:
        """The part for gradients with these strides, by which later calls run."""
        if len(self._parts) > _MOST_LAYOUTS or self._examples is None:
            return None
        outputs = dict(zip(self._part.given_outputs, strides, strict=True))
        known = len(self._session.parts)
        try:
            with (
                self._session.tracing(),
                private.tracing_again(self._examples),
                torch.enable_grad(),
                self._autocast(),
            ):
                call, part = self._trace(self._examples, outputs)
        except Exception:  # copies are right within rounding
            part = None
        if part is None or part.given_strides != strides:
            del self._session.parts[known:]
            return None
        self._session.replace(self._part, part)
        self._call, self._part = call, part
        part.layouts = self
        return part

    def _say_rounded(self, strides: Strides) -> None:
        self._session.note(
            line := f"gradients come to {self._part.name} in strides {strides}, for which it was "
            "not traced: it copies them, and this step is the plain one within rounding"
        )
        warnings.warn(line, RoundingWarning, stacklevel=2)


def autocast_as_here() -> Callable[[], AbstractContextManager[None]]:
    """A context manager that makes each kind of device cast as it does at this moment."""
    kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    casts = [
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds
    ]

    @contextmanager
    def as_then() -> Iterator[None]:
        with ExitStack() as stack:
            for kind, is_on, dtype in casts:
                stack.enter_context(torch.autocast(kind, dtype, is_on))
            yield

    return as_then


def put_in_strides(given: list[Any], strides: Strides) -> None:
    """Replace gradients in other strides by copies, as AOTAutograd would."""
    for i, (it, wanted) in enumerate(zip(given, strides, strict=True)):
        if wanted and it.stride() != wanted:
            given[i] = it.new_empty_strided(it.shape, wanted).copy_(it)


def _equal(ones: Strides, others: Strides, given: Sequence[torch.Tensor]) -> bool:
    """Whether strides differ at most in dimensions of one entry, or of none."""
    return all(
        one == other
        or it.numel() == 0
        or all(a == b or size == 1 for a, b, size in zip(one, other, it.shape, strict=True))
        for one, other, it in zip(ones, others, given, strict=True)
    )


def _taken_over(
    part: TracedPart, number: int, other: TracedPart
) -> tuple[TracedPart, Halves] | None:
    """`other` and its code, if its backward reads what a forward of `part` has kept."""
    schedule = _by_ops_of(other, part, part.schedules[number])
    if schedule is None:
        return None
    mine = part.halves_of(number)
    try:
        halves = other.halves_of(other.add(schedule))
    except SchedsimError:
        return None
    kept = [
        (it.resident, it.read_backward, it.carried, it.carried_states, it.repeated_random)
        for it in (mine, halves)
    ]
    same = part.program.constants.keys() == other.program.constants.keys()
    return (other, halves) if same and kept[0] == kept[1] else None


def _by_ops_of(other: TracedPart, part: TracedPart, schedule: Schedule) -> Schedule | None:
    """`schedule` of `part` by the ops of `other`: equal up to the loss, each op of its own behind.

    Ops of the backward come in the order of `other`; repeats of forward ops stay before the ops
    that they come before in `schedule`.
    """
    mine, its = part.graph.op_names, other.graph.op_names
    seed, at = mine.index(part.seed_name), its.index(other.seed_name)
    if mine[:seed] != its[:at]:
        return None
    names = list(schedule.names)
    half = names.index(part.seed_name)
    runs = names[:half]
    runs.append(other.seed_name)
    forward, own = set(mine[:seed]), set(its[at + 1 :])
    waiting = list(its[at + 1 :])
    for name in names[half + 1 :]:
        if name in forward:
            runs.append(name)
        elif name in own and name in waiting:
            until = waiting.index(name) + 1
            runs += waiting[:until]
            del waiting[:until]
    return Schedule.from_names([*runs, *waiting])
