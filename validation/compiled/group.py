"""A group of fused ops: one function of tensors, compiled once for all of its places."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import torch

from ..capture.program import Call, Program, Ref, Value, map_refs, refs
from ..torch_private import inductor_calls as inductor
from ..torch_private.cut_objects import with_whole_objects
from ..torch_private.fake_tensors import fake_mode
from ..user_warnings import warn_user
from .aligned_calls import AlignedCalls
from .draws_by_op import Layout, with_compiled_draws

Trial = tuple[str, tuple[int, ...]]


class CompileWarning(UserWarning):
    """A step, or a part of it, that should have been compiled runs uncompiled."""


_MOST_FAILURES = 3
"""Groups that inductor may fail to compile before any other: beyond, it compiles nothing here."""


class FusedGroup:
    """A callable from tensors to the group's outputs; inductor compiles it on the first call.

    Attributes
    ----------
    key
        Text that is equal for groups of equal code.
    calls
        The ops, on numbered values: the arguments have the first numbers.
    inputs
        Layouts of the arguments.
    outputs
        The numbers of the values that are returned.
    by_op
        Whether inductor failed to compile it, so that its ops run one by one.
    """

    def __init__(
        self, key: str, calls: Sequence[Call], inputs: Sequence[Layout], outputs: Sequence[int]
    ) -> None:
        self.key = key
        self.__name__ = f"group_{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        self.calls, self.inputs, self.outputs = calls, inputs, outputs
        self.by_op = False
        self._compiled: Callable[[list[Any]], Sequence[Any]] | None = None
        self._overwriting: dict[tuple[int, int], OverwritingGroup] = {}

    def overwriting(self, position: int, over: int) -> OverwritingGroup:
        """The group, with output `over` written in place of the argument at `position`."""
        if (position, over) not in self._overwriting:
            self._overwriting[position, over] = OverwritingGroup(self, position, over)
        return self._overwriting[position, over]

    @property
    def overwritings(self) -> list[OverwritingGroup]:
        """Those that were asked for."""
        return list(self._overwriting.values())

    @property
    def ops(self) -> str:
        """Its ops, for people."""
        return ", ".join(dict.fromkeys(str(call.target) for call in self.calls))

    @property
    def num_ops(self) -> int:
        """Number of ops that are computed, views included."""
        return len(self.calls)

    def __call__(self, *tensors: torch.Tensor) -> Any:
        compiled = self._compiled or self.compile()
        made = compiled(list(tensors))
        return made if len(self.outputs) > 1 else made[0]

    def compile(self) -> Callable[[list[Any]], Sequence[Any]]:
        """Compile the group, once."""
        if self._compiled is None:
            self._compiled = self.compiled_as(self.uncompiled)
        return self._compiled

    def begin(self) -> list[Callable[[], None]]:
        """Begin to compile the group; what is to be called before it runs."""
        return _begun(self.compile, self.inputs)

    def run_by_op(self) -> None:
        """Run the ops one by one from now on, under a name of its own: it takes other bytes.

        Raises
        ------
        Exception
            That of inductor, where it does not compile what the group draws from a seed.
        """
        calls = with_compiled_draws(self.calls, self.inputs)
        self.by_op = True
        self.__name__ = f"{self.__name__}_by_op"
        self._compiled = lambda tensors: self._made_by(calls, tensors)

    def compiled_as(self, function: Callable[..., Any]) -> Callable[[list[Any]], Sequence[Any]]:
        """`function` of the group's arguments, compiled for their layouts."""

        def code(apart: tuple[int, ...]) -> Callable[[list[Any]], Sequence[Any]]:
            mode = fake_mode()
            with mode, torch.no_grad():
                examples = [_example(row, i in apart) for i, row in enumerate(self.inputs)]
            return inductor.compile_function(function, examples, mode)

        on_cuda = [i for i, layout in enumerate(self.inputs) if layout[3].type == "cuda"]
        return AlignedCalls(code, on_cuda) if on_cuda else code(())

    def uncompiled(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        """The outputs of the group, computed op by op."""
        return self._made_by(self.calls, tensors)

    def _made_by(self, calls: Sequence[Call], tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        held: dict[int, Any] = dict(enumerate(tensors))
        for call in calls:
            made = call.target(
                *map_refs(call.args, lambda v: held[v]),
                **map_refs(call.kwargs, lambda v: held[v]),
            )
            parts = made if call.is_tuple else (made,)
            held.update((v, part) for v, part in zip(call.outputs, parts, strict=False) if v >= 0)
        return tuple(held[v] for v in self.outputs)


class OverwritingGroup:
    """A group with one output that takes over the storage of an argument, which comes first.

    Attributes
    ----------
    fails
        Whether inductor failed to compile it, so that no call may use it.
    """

    def __init__(self, group: FusedGroup, position: int, over: int) -> None:
        self.fails = False
        self._group, self._position, self._over = group, position, over
        self.__name__ = f"{group.__name__}_over{position}_{over}"
        self._compiled: Callable[[list[Any]], Sequence[Any]] | None = None

    def __call__(self, part: torch.Tensor, *rest: torch.Tensor) -> Any:
        compiled = self._compiled or self.compile()
        position, over = self._position, self._over
        made = compiled([*rest[:position], part, *rest[position:]])
        return (*made[:over], part, *made[over:]) if made else part

    def compile(self) -> Callable[[list[Any]], Sequence[Any]]:
        """Compile the group, once."""
        if self._compiled is None:
            self._compiled = self._group.compiled_as(self._overwrite)
        return self._compiled

    def begin(self) -> list[Callable[[], None]]:
        """Begin to compile the code, unless that failed; what is to be called before it runs."""
        return [] if self.fails else _begun(self.compile, self._group.inputs)

    def say_that_it_fails(self, error: Exception) -> None:
        """No call may use the code, because inductor does not compile it."""
        self.fails = True
        line = f"a group of ops writes over no input, within the budget: {reason(error)}"
        warn_user(f"{line} ({self._group.ops})", CompileWarning)

    def _overwrite(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        made = self._group.uncompiled(*tensors)
        tensors[self._position].copy_(made[self._over])
        return (*made[: self._over], *made[self._over + 1 :])


def _begun(compile_it: Callable[[], Any], inputs: Sequence[Layout]) -> list[Callable[[], None]]:
    """Begin to compile code; what is to be called, in order, before the code is."""
    if not inputs or any(layout[3].type != "cpu" for layout in inputs):
        with_whole_objects(compile_it)
        return []
    with inductor.kernels_later() as waits:
        with_whole_objects(compile_it)
    return [partial(with_whole_objects, wait) for wait in waits]


class Groups:
    """Makes groups, one for each distinct piece of code.

    Attributes
    ----------
    known
        The groups that steps need, by key; not those that `join` makes.
    tried
        Code that has run on the device, before any step: its name, and where its arguments lay.
    """

    def __init__(self) -> None:
        self.known: dict[str, FusedGroup] = {}
        self.tried: set[Trial] = set()
        self._some = False  # whether inductor has compiled any
        self._joined: dict[str, FusedGroup] = {}
        self._failing: set[str] = set()  # of those

    def compile(self) -> None:
        """Compile all groups, and what writes over their inputs.

        Those that inductor cannot compile run op by op, or write over no input, with a warning.

        Raises
        ------
        Exception
            That of inductor, where it compiles nothing, or does not compile a draw from a seed.
        """
        begun: list[tuple[FusedGroup, OverwritingGroup | None, list[Callable[[], None]]]] = []
        failed: list[tuple[FusedGroup, Exception]] = []
        for group in self.known.values():
            if group.by_op:
                continue
            try:
                begun.append((group, None, group.begin()))
            except Exception as error:  # whatever a pass of inductor raises
                failed.append((group, error))
                if not (begun or self._some) and len(failed) == _MOST_FAILURES:
                    raise
                continue
            for overwriting in group.overwritings:
                try:
                    begun.append((group, overwriting, overwriting.begin()))
                except Exception as error:
                    overwriting.say_that_it_fails(error)
        for group, code, waits in begun:
            try:
                for wait in waits:
                    wait()
            except Exception as error:  # the C++ compiler's
                if code is None:
                    failed.append((group, error))
                else:
                    code.say_that_it_fails(error)
            else:
                self._some = self._some or code is None
        if failed and not self._some:
            raise failed[0][1]
        for group, why in failed:
            group.run_by_op()
            line = f"a group of ops runs uncompiled, within the budget: {reason(why)} ({group.ops})"
            warn_user(line, CompileWarning)

    def compile_joined(self, groups: Sequence[FusedGroup]) -> set[str]:
        """Compile `groups`, made by `join`, beside each other.

        Returns
        -------
        set of str
            The keys of those that inductor cannot compile, which it is not asked for again.
        """
        begun: list[tuple[FusedGroup, list[Callable[[], None]]]] = []
        for group in groups:
            if group.key in self._failing:
                continue
            try:
                begun.append((group, group.begin()))
            except Exception:  # whatever a pass of inductor raises
                self._failing.add(group.key)
        for group, waits in begun:
            try:
                for wait in waits:
                    wait()
            except Exception:  # the C++ compiler's
                self._failing.add(group.key)
        return {group.key for group in groups} & self._failing

    def join(
        self, program: Program, parts: Sequence[Call], outputs: Sequence[int]
    ) -> tuple[FusedGroup, list[int]]:
        """One group that does what `parts`, calls of groups, do one after another.

        Parameters
        ----------
        outputs
            The outputs of `parts` that are still needed.
        """
        local: dict[int, int] = {}
        inputs: dict[int, None] = {}
        calls = _flattened(program, parts, local, inputs)
        made = [local[v] for v in outputs]
        layouts = [_layout(program.values[v]) for v in inputs]
        return self._known(calls, layouts, made, joined=True), list(inputs)

    def _known(
        self,
        calls: Sequence[Call],
        layouts: Sequence[Layout],
        outputs: Sequence[int],
        *,
        joined: bool = False,
    ) -> FusedGroup:
        key = "\n".join(
            [str(list(layouts)), str(list(outputs))]
            + [f"{p.outputs} = {p.target}{p.args}{p.kwargs}" for p in calls]
        )
        group = self.known.get(key) or (self._joined.get(key) if joined else None)
        if group is None:
            group = FusedGroup(key, calls, layouts, outputs)
            (self._joined if joined else self.known)[key] = group
        return group

    def make(
        self, program: Program, calls: Sequence[int], outputs: Sequence[int]
    ) -> tuple[FusedGroup, list[int]]:
        """The group of `calls` (in order, views included), and the values that it is called with.

        Parameters
        ----------
        outputs
            Values that the group returns.
        """
        made = {v for i in calls for v in program.calls[i].outputs}
        inputs: dict[int, None] = {}
        for i in calls:
            call = program.calls[i]
            inputs.update((v, None) for v in refs((call.args, call.kwargs)) if v not in made)
        local = {v: position for position, v in enumerate(inputs)}
        for i in calls:
            for v in program.calls[i].outputs:
                if v >= 0:
                    local[v] = len(local)
        parts = []
        for i in calls:
            call = program.calls[i]
            parts.append(
                Call(
                    "",
                    call.target,
                    map_refs(call.args, lambda v: Ref(local[v])),
                    map_refs(call.kwargs, lambda v: Ref(local[v])),
                    outputs=[local.get(v, -1) for v in call.outputs],
                    is_tuple=call.is_tuple,
                )
            )
        layouts = [_layout(program.values[v]) for v in inputs]
        return self._known(parts, layouts, [local[v] for v in outputs]), list(inputs)


def reason(error: Exception) -> str:
    """What inductor raised, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _flattened(
    program: Program, parts: Sequence[Call], local: dict[int, int], inputs: dict[int, None]
) -> list[Call]:
    """The ops of groups that run one after another, numbered anew; fills both tables."""
    storages = {program.values[v].storage for part in parts for v in part.outputs if v >= 0}
    calls: list[Call] = []
    number = count(_LOCAL)

    def known(v: int) -> int:
        if v in local:
            return local[v]
        maker = program.calls[program.values[v].call] if program.values[v].call >= 0 else None
        if maker is None or not maker.is_view or program.values[v].storage not in storages:
            raise KeyError(v)
        call = replace(
            maker,
            args=map_refs(maker.args, lambda w: Ref(known(w))),
            kwargs=map_refs(maker.kwargs, lambda w: Ref(known(w))),
        )
        for output in maker.outputs:
            if output >= 0:
                local[output] = next(number)
        calls.append(replace(call, outputs=[local.get(o, -1) for o in maker.outputs]))
        return local[v]

    for part in parts:
        for v in refs((part.args, part.kwargs)):
            inside = program.values[v].storage in storages
            if v not in local and not inside:
                inputs[v] = None
                local[v] = len(inputs) - 1
    for part in parts:
        group = part.target
        assert isinstance(group, FusedGroup)
        own = {i: known(v) for i, v in enumerate(refs((part.args, part.kwargs)))}
        for call in group.calls:
            for output in call.outputs:
                if output >= 0:
                    own[output] = next(number)
            calls.append(_renumbered(call, own))
        for v, i in zip([v for v in part.outputs if v >= 0], group.outputs, strict=True):
            local[v] = own[i]
    return calls


def _renumbered(call: Call, numbers: dict[int, int]) -> Call:
    return replace(
        call,
        args=map_refs(call.args, lambda v: Ref(numbers[v])),
        kwargs=map_refs(call.kwargs, lambda v: Ref(numbers[v])),
        outputs=[numbers.get(v, -1) for v in call.outputs],
    )


_LOCAL = 1 << 20
"""Numbers of values made in a joined group begin here; numbers of its inputs begin at 0."""


def _example(layout: Layout, is_apart: bool) -> torch.Tensor:
    """A tensor of `layout`; one that begins behind the first entry of its storage if `is_apart`."""
    shape, stride, dtype, device = layout
    made = torch.empty_strided(shape, stride, dtype=dtype, device=device)
    if not is_apart:
        return made
    entries = made.untyped_storage().nbytes() // dtype.itemsize
    return torch.empty(entries + 1, dtype=dtype, device=device).as_strided(shape, stride, 1)


def _layout(value: Value) -> Layout:
    return value.shape, value.stride, value.dtype, value.device
