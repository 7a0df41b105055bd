"""Splitting a model around its repeated blocks, without touching its code.

The forward of a model such as GPT-2 runs something, then its blocks one after another, then
something more. The blocks are known as modules; what runs before and after them is not. Here the
model's own forward runs with the blocks replaced. For the part before the blocks, the replacements
note their arguments, and the last one stops the run; for the part after the blocks, the
replacements return the activation. The part after therefore repeats what runs before the blocks
(usually an embedding), and its measured time and bytes include that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from schedsim.errors import UnsupportedError

from ..guards.recording import Recorded
from ..guards.watched_places import Places
from ..torch_private.sharded_groups import is_sharded
from .block_outputs import BlockOutput
from .forward_writes import undone_writes
from .parts import OtherPath, Part, StepInputs
from .repeated_forward import PYTHON, RandomState, frozen_statistics, generators, untouched

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True, slots=True)
class Slot:
    """The argument by which a block takes the activation.

    Attributes
    ----------
    place : int or str
        Position, or keyword.
    """

    place: int | str

    def take(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The activation among the arguments of a block."""
        if isinstance(self.place, str):
            return kwargs[self.place]
        return args[self.place]

    def without(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with ``None`` in place of the activation."""
        return self.put(None, args, kwargs)

    def put(
        self, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with `value` as the activation."""
        if isinstance(self.place, str):
            return args, {**kwargs, self.place: value}
        return (*args[: self.place], value, *args[self.place + 1 :]), dict(kwargs)


class _Reached(BaseException):
    """The last block was reached. It is no `Exception`, so that no model catches it."""


class _NoLine(BaseException):
    """A block was left out, or the activation was changed between two blocks."""


class SplitModel:
    """A model, its blocks in the order in which they run, where they take the activation, and how
    each returns it."""

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[nn.Module],
        slot: Slot,
        outputs: Sequence[BlockOutput],
    ) -> None:
        self.model, self.blocks, self.slot = model, list(blocks), slot
        self.outputs = list(outputs)
        self.generators = generators(model)
        self.python = Places(())

    def watch(self, recorded: Recorded) -> None:
        """Make what runs before the blocks run again as at first, with generators and Python."""
        names = {id(m): name for name, m in self.model.named_modules()}
        inside = [f"model.{names[id(block)]}." for block in self.blocks]
        self.python = recorded.places.outside(inside)
        if recorded.draws:
            self.generators = (*self.generators, PYTHON)

    def parts(self, names: Sequence[str]) -> list[Part]:
        """The parts: what runs before the blocks, each block, and what runs after them."""
        inside = {id(m) for block in self.blocks for m in block.modules()}
        around = tuple(m for m in self.model.modules() if id(m) not in inside)
        parts = [Part("before", self._before, (0,), around)]
        for k, block in enumerate(self.blocks):
            parts.append(Part(names[k], self._block(k), (k + 1,), (block,)))
        last = len(self.blocks) + 1
        return [*parts, Part("after", self._after, (last,), around)]

    def _before(self, step: StepInputs, *_: Any) -> Any:
        first: list[Any] = []
        side: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        if step.prefix_rng is None:
            step.prefix_rng = RandomState.now(self.generators)
            step.prefix_python = self.python.take()
        called: list[int] = []

        def stand_in(k: int) -> Callable[..., Any]:
            def forward(*args: Any, **kwargs: Any) -> Any:
                value = self.slot.take(args, kwargs)
                called.append(k)
                if called != list(range(k + 1)) or (first and value is not first[0]):
                    raise _NoLine
                if k == 0:
                    first.append(value)
                side.append(self.slot.without(args, kwargs))
                if k == len(self.blocks) - 1:
                    raise _Reached
                return self.outputs[k].wrap(value)

            return forward

        with self._replaced(stand_in):
            try:
                self._called(step)
            except _Reached:
                return self._first(step, first, side)
            except _NoLine:
                pass
            self.python.put(step.prefix_python)
            raise OtherPath(
                f"the blocks of {type(self.model).__name__} are not called one after another, "
                "each on what the one before gives",
                hint="list the blocks yourself, or use the op level",
            )

    def _first(self, step: StepInputs, first: list[Any], side: list[Any]) -> Any:
        if not step.side:
            step.side = side
        return first[0]

    def _block(self, k: int) -> Callable[..., Any]:
        block, output = self.blocks[k], self.outputs[k]

        def call(step: StepInputs, value: Any) -> Any:
            args, kwargs = self.slot.put(value, *step.side[k])
            return output.activation(block(*args, **kwargs))

        return call

    def _after(self, step: StepInputs, value: Any) -> Any:
        # The code before the blocks runs again here, with the random numbers of its first run, and
        # without moving statistics; from the last block on, everything is as it was.
        now = RandomState.now(self.generators)
        before = ExitStack()

        def stand_in(k: int) -> Callable[..., Any]:
            def forward(*args: Any, **kwargs: Any) -> Any:
                if k < len(self.blocks) - 1:
                    return self.outputs[k].wrap(self.slot.take(args, kwargs))
                before.close()
                now.restore()
                return self.outputs[k].wrap(value)

            return forward

        with self._replaced(stand_in), before:
            if step.prefix_rng is not None:
                step.prefix_rng.restore()
                self.python.put(step.prefix_python)
            before.enter_context(frozen_statistics((self.model,)))
            return self._called(step)

    def _called(self, step: StepInputs) -> Any:
        """The output of the model; for a sharded model that holds nothing itself, of its forward.

        Hooks that gather for the whole model would be interrupted together with the model.
        """
        call = self.model.forward if is_sharded(self.model) else self.model
        return call(*step.arguments, **step.keywords)

    @contextmanager
    def _replaced(self, stand_in: Callable[[int], Callable[..., Any]]) -> Iterator[None]:
        own = [block.__dict__.get("forward") for block in self.blocks]
        # Hooks of a block run where the block runs: its replacement gathers nothing.
        hooks = [(b.__dict__, {name: b.__dict__[name] for name in _HOOKS}) for b in self.blocks]
        try:
            for k, block in enumerate(self.blocks):
                block.forward = stand_in(k)
                block.__dict__.update({name: OrderedDict() for name in _HOOKS})
            yield
        finally:
            for attributes, kept in hooks:
                attributes.update(kept)
            for block, forward in zip(self.blocks, own, strict=True):
                if forward is None:
                    block.__dict__.pop("forward", None)
                else:
                    block.forward = forward


@dataclass
class _BlockCall:
    """One call of a candidate block."""

    module: nn.Module
    place: int | str | None  # the argument that is the result of the call before it
    output: BlockOutput


def find_blocks(
    model: nn.Module,
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
    blocks: Sequence[nn.Module] | None = None,
) -> SplitModel:
    """The longest line of modules, each fed by the one before it; `blocks` where they are given.

    The modules are searched among the items of module lists and sequences of `model`, by running
    the model once without gradients.

    Raises
    ------
    UnsupportedError
        There is no such line, or the given blocks do not form one.
    """
    calls = _recorded(model, arguments, keywords, blocks or _candidates(model))
    run = _longest_run(calls)
    wanted = len(blocks) if blocks is not None else 2
    if len(run) < max(2, wanted):
        raise UnsupportedError(
            f"{type(model).__name__}: "
            + (
                f"only {len(run)} of the {wanted} blocks given feed each other"
                if blocks is not None
                else "no line of repeated blocks was found"
            ),
            hint="make it an nn.Sequential, give it blocks(), or use --level op",
        )
    place = run[1].place
    assert place is not None
    blocks, outputs = [call.module for call in run], [call.output for call in run]
    return SplitModel(model, blocks, Slot(place), outputs)


def _candidates(model: nn.Module) -> list[nn.Module]:
    """Items of the outermost lists and sequences."""
    found: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, nn.ModuleList) or type(child) is nn.Sequential:
            for item in child:
                # Stages of stages: a list whose items are sequences of blocks.
                found += _candidates(nn.ModuleList([item])) if _is_list(item) else [item]
        else:
            found += _candidates(child)
    return found


def _is_list(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList) or type(module) is nn.Sequential


def _recorded(
    model: nn.Module,
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
    candidates: Sequence[nn.Module],
) -> list[_BlockCall]:
    calls: list[_BlockCall] = []
    previous: list[Any] = [None]
    handles = []

    def after(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        output = BlockOutput.of(type(module).__name__, out)
        given = out if output.sequence is None else out[0]
        before, previous[0] = previous[0], given
        place: int | str | None = None
        if isinstance(before, Tensor):
            named = [*enumerate(args), *kwargs.items()]
            place = next((key for key, value in named if value is before), None)
        calls.append(_BlockCall(module, place, output))

    for module in candidates:
        handles.append(module.register_forward_hook(after, with_kwargs=True))
    try:
        with torch.no_grad(), untouched(model), undone_writes(model) as own, own.seen():
            model(*arguments, **keywords)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _longest_run(calls: Sequence[_BlockCall]) -> list[_BlockCall]:
    best: list[_BlockCall] = []
    run: list[_BlockCall] = []
    for call in calls:
        linked = (
            run
            and call.place is not None
            and call.output.sequence is run[-1].output.sequence
            and (len(run) == 1 or call.place == run[1].place)
            and all(call.module is not other.module for other in run)
        )
        run = [*run, call] if linked else [call]
        if len(run) > len(best):
            best = run
    return best
