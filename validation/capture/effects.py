"""The effects of a step: updated buffers, and one gradient for each parameter."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from .program import Call, Program, Ref, Storage, Value, refs, same_strides

aten = torch.ops.aten


def add_updates(
    program: Program,
    mutations: list[tuple[int, int]],
    expects: Sequence[Call] = (),
    checks: Sequence[Call] = (),
) -> None:
    """Add the copies of new values into the buffers (or inputs) that the step changes.

    Each copy runs once, after every op that reads the old value; those ops may not repeat either,
    because they would read the new value. BatchNorm in training is the exception: a repeated run
    reads no running statistics.

    Parameters
    ----------
    mutations
        Pairs of values: the value that changes, and its new content.
    expects
        Calls that may end the step before it changes anything: they come first.
    checks
        Calls that end the step where the plain step ends: those before the new value come first.
    """
    waited = _places(program, expects)
    ends = _places(program, checks)
    values = program.values
    changed = {values[old].storage: _Readers([], []) for old, _ in mutations}
    for i, call in enumerate(program.calls):
        if call.is_view:
            continue
        args = call.lean[1] if call.lean else call.args
        always = {values[v].storage for v in refs((args, call.kwargs))}
        for storage in dict.fromkeys(values[v].storage for v in refs((call.args, call.kwargs))):
            if storage in changed:
                (
                    changed[storage].always if storage in always else changed[storage].at_first
                ).append(i)
    inserted = []
    for old, new in mutations:
        readers = changed[values[old].storage]
        for i in readers.always:
            program.calls[i].once = True
        maker = values[new].call
        first = [*waited, *(i for i in ends if i < maker)]
        at = max([maker, *readers.always, *readers.at_first, *first]) + 1
        update = Call(
            name=f"{_name_of(program, old)}.update",
            target=aten.copy_.default,
            args=(Ref(old), Ref(new)),
            kwargs={},
            phase="backward" if at > program.seed else "forward",
            once=True,
            tokens=(*(i for i in readers.always if i != maker), *first),
        )
        inserted.append((at, update))
    insert_all(program, inserted)


def _places(program: Program, calls: Sequence[Call]) -> list[int]:
    return [i for i, call in enumerate(program.calls) if any(call is one for one in calls)]


class _Readers(NamedTuple):
    """Ops that read what is changed: in every run, or only in a run that writes the new value."""

    always: list[int]
    at_first: list[int]


def order_draws(program: Program) -> None:
    """Keep first runs of random ops in the order of the model, so that each draws its numbers.

    If the data does not force two successive random ops into that order, as on parallel branches,
    the later op waits for the earlier one by an empty tensor. O(calls) for each such pair.
    """
    _keep_in_order(program, [i for i, call in enumerate(program.calls) if call.random])


def order_messages(program: Program, messages: Sequence[int]) -> None:
    """Keep calls for which other ranks wait in the order of the trace, and each in its half.

    So ranks whose schedules differ still send the same messages in the same order. O(calls) for
    each pair of successive messages that the data does not force into that order.

    Parameters
    ----------
    messages
        Places of these calls, in order.
    """
    if messages:
        _keep_in_order(program, sorted([program.seed, *messages]))


def _keep_in_order(program: Program, places: Sequence[int]) -> None:
    for earlier, later in pairwise(places):
        if not _depends(program, later, earlier):
            program.calls[later].tokens += (earlier,)


def _depends(program: Program, later: int, earlier: int) -> bool:
    """Whether call `later` needs a result of call `earlier`, however indirectly."""
    stack, seen = [later], {later}
    while stack:
        call = program.calls[stack.pop()]
        sources = [program.values[v].call for v in refs((call.args, call.kwargs))]
        for source in [*sources, *call.tokens]:
            if source == earlier:
                return True
            if source > earlier and source not in seen:
                seen.add(source)
                stack.append(source)
    return False


def _name_of(program: Program, value: int) -> str:
    for table in (program.buffers, program.parameters):
        for name, held in table.items():
            if held == value:
                return name
    return "input"


def add_gradients(program: Program, gradients: dict[str, list[int]]) -> None:
    """Make one tensor of each parameter's gradient, in the form in which autograd keeps it.

    A parameter with several names gets the sum of its gradients, added in the order in which they
    are made. Autograd takes over a gradient directly if its strides are the parameter's and nothing
    else holds it; the copy that autograd would otherwise make is an op of the graph here.
    """
    _Gradients(program).add(gradients)


class _Gradients:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.taken: set[int] = set()
        self.inserted: list[tuple[int, Call]] = []
        self.places: dict[int, int] = {}  # new value -> place of the call that makes it

    def add(self, gradients: dict[str, list[int]]) -> None:
        program = self.program
        for name, parts in gradients.items():
            parts = sorted(set(parts), key=lambda v: (program.values[v].call, v))
            total = parts[0]
            for part in parts[1:]:
                after = max(self._after(total), self._after(part))
                like = program.values[total]
                total = self._make(
                    f"{name}.sum",
                    aten.add.Tensor,
                    (Ref(total), Ref(part)),
                    (like.shape, _dense(like)),
                    after,
                )
            source = program.parameters[name]
            program.gradients[name] = self._own(name, source, total)
        for position, value in list(program.input_gradients.items()):
            source = program.inputs[position]
            program.input_gradients[position] = self._own(f"input{position}", source, value)
        insert_all(program, self.inserted)

    def _own(self, name: str, source: int, value: int) -> int:
        """`value`, or a copy of it if autograd would not take it over directly."""
        values, storages = self.program.values, self.program.storages
        held, like = values[value], values[source]
        given = {values[tangent].storage for tangent in self.program.tangents}
        foreign = storages[held.storage].kind != "computed" or held.storage in given
        if (
            foreign
            or held.storage in self.taken
            or not same_strides(held.shape, held.stride, like.stride)
        ):
            args = (Ref(value), like.shape, like.stride)
            layout = (like.shape, like.stride)
            value = self._make(f"{name}.lay_out", laid_out, args, layout, self._after(value))
        self.taken.add(values[value].storage)
        return value

    def _after(self, value: int) -> int:
        at = self.places.get(value, self.program.values[value].call + 1)
        return max(at, self.program.seed + 1)

    def _make(
        self,
        name: str,
        target: Any,
        args: tuple[Any, ...],
        layout: tuple[tuple[int, ...], tuple[int, ...]],
        at: int,
    ) -> int:
        """Add a backward call at `at`; returns the value that it makes."""
        program = self.program
        shape, stride = layout
        like = program.values[args[0].value]
        span = sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        numel = 1 + span if all(shape) else 0
        program.storages.append(Storage(numel * like.dtype.itemsize, "computed"))
        program.values.append(
            Value(len(program.storages) - 1, shape, stride, like.dtype, like.device)
        )
        value = len(program.values) - 1
        self.places[value] = at
        self.inserted.append(
            (
                at,
                Call(
                    name,
                    target,
                    args,
                    {},
                    outputs=[value],
                    phase="backward",
                    is_gradient_sum=target is aten.add.Tensor,
                ),
            )
        )
        return value


def laid_out(
    gradient: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    """A copy of `gradient` with the strides of its parameter."""
    return gradient.new_empty_strided(shape, stride).copy_(gradient)


def _dense(value: Value) -> tuple[int, ...]:
    """The strides of an elementwise result: dense, in the order of the input's strides."""
    order = sorted(range(len(value.shape)), key=lambda d: (value.stride[d], -d))
    stride = [0] * len(value.shape)
    step = 1
    for dim in order:
        stride[dim] = step
        step *= max(value.shape[dim], 1)
    return tuple(stride)


def insert_all(program: Program, inserted: list[tuple[int, Call]]) -> None:
    """Insert each call before the call at its index; calls at one index keep their order.

    O(values + calls), however many are inserted.
    """
    at_place: dict[int, list[Call]] = {}
    for at, call in inserted:
        at_place.setdefault(at, []).append(call)
    calls: list[Call] = []
    moved: list[int] = []
    for i, call in enumerate(program.calls):
        calls += at_place.get(i, [])
        moved.append(len(calls))
        calls.append(call)
    calls += at_place.get(len(program.calls), [])
    for value in program.values:
        value.call = moved[value.call] if value.call >= 0 else -1
    for storage in program.storages:
        storage.call = moved[storage.call] if storage.call >= 0 else -1
    for call in calls:
        call.tokens = tuple(moved[token] for token in call.tokens)
    program.seed = moved[program.seed] if program.seed >= 0 else -1
    program.calls = calls
    new = {id(call) for _, call in inserted}
    for i, call in enumerate(calls):
        if id(call) in new:
            for position, output in enumerate(call.outputs):
                program.values[output].call = i
                program.values[output].position = position
                program.storages[program.values[output].storage].call = i
