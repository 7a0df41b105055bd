"""Convolutions and what surrounds them in channels-last, where inductor would compile them so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ..capture.program import (
    COPIES_OF_STORAGES,
    Call,
    Program,
    Ref,
    Storage,
    Value,
    empty_of,
    map_refs,
    refs,
    same_strides,
)
from ..torch_private import inductor_calls as inductor
from ..torch_private.fake_tensors import fake_mode
from ..torch_private.storage_refs import storage_key
from .fusible import fusible_target
from .scratch_of_layouts import needs_planes

aten = torch.ops.aten

_CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
"""Ops whose kernels are quicker in channels-last."""

_CHANNELS_LAST = 0, 2, 3, 1
"""The order of dimensions in memory, the outermost first."""

_PLANES = 0, 1, 2, 3
"""That of images whose channels lie one behind the other."""

_FOLLOWING = frozenset(
    {
        aten.max_pool2d_with_indices.default,
        aten.max_pool2d_with_indices_backward.default,
        aten.avg_pool2d_backward.default,
        aten._adaptive_avg_pool2d.default,
        aten._adaptive_avg_pool2d_backward.default,
    }
)
"""Kernels that lay their outputs out as their inputs are."""


def with_channels_last(program: Program) -> Program:
    """A decomposed `program` whose convolutions read and write channels-last, if that is quicker.

    Which steps gain is inductor's decision. The arguments of each convolution are copied into
    channels-last unless they have it already, once for each half of the step; elementwise ops,
    reductions, views and pooling keep the layout that they are given; any other op, and whoever
    reads the results of the step, gets the layout that was traced. Results are the same within
    rounding. `program` itself is returned where nothing changes.

    A gradient of a weight that would take much scratch in channels-last gets images plane by plane.

    A program that reads the storage under such a tensor is returned unchanged too.

    Notes
    -----
    O(size of the program), with one evaluation on fake tensors for each op that follows.
    """
    forward = program.calls[: program.seed]
    calls = [call for call in forward if call.target is aten.convolution.default]
    if not any(_is_of_images(program, call) for call in calls) or not _gains(program, calls):
        return program
    try:
        return _Relaid(program).relaid()
    except _LayoutError:
        return program


class _LayoutError(Exception):
    """An op depends on how a tensor lies in memory."""


def _gains(program: Program, convolutions: Sequence[Call]) -> bool:
    """Whether inductor would lay the step out in channels-last."""
    mode = fake_mode()
    described = []
    for call in convolutions:
        with mode:
            args = map_refs(call.args, lambda v: empty_of(program.values[v]))
        described.append(args)
    return inductor.prefers_channels_last(described, len(program.calls))


class _Relaid:
    """The program that is made, with the values of the old one at their places."""

    def __init__(self, program: Program) -> None:
        self.old = program
        self.new = replace(
            program,
            values=[replace(value) for value in program.values],
            storages=[replace(storage) for storage in program.storages],
            calls=[],
        )
        self.mode = fake_mode()
        self.results = {*program.outputs, *program.gradients.values()}
        self.results |= set(program.input_gradients.values())
        self.moved: dict[int, int] = {}  # old call -> new call
        self.copies: dict[tuple[int, tuple[int, ...], bool], int] = {}  # value, order, backward?
        self.backward = False

    def relaid(self) -> Program:
        for index, call in enumerate(self.old.calls):
            self._put(call, handed_over=index == self.old.seed)
            self.moved[index] = len(self.new.calls) - 1
            self.backward = index >= self.old.seed
        self.new.seed = self.moved[self.old.seed]
        return self.new

    def _put(self, call: Call, handed_over: bool) -> None:
        """`call` on the layouts that its arguments have now.

        Parameters
        ----------
        handed_over
            Whether the runtime replaces the call, so that it cannot be evaluated.
        """
        read = list(refs((call.args, call.kwargs, call.lean)))
        is_laid_out = call.target in _CONVOLUTIONS and _is_of_images(self.old, call)
        if is_laid_out and needs_planes(self.old, call):
            first = set(_first(call))
            found = self._with(call, lambda v: self._planes(v, call) if v in first else v)
            follows = self._follows(found)
        elif is_laid_out:
            first = set(_first(call))
            found = self._with(call, lambda v: self._channels_last(v, call) if v in first else v)
            follows = self._follows(found)
        else:
            found, follows = self._with(call, lambda v: v), not any(map(self._is_relaid, read))
            if not follows and _may_follow(call):
                follows = self._follows(found)
            if not follows:
                found = self._with(call, lambda v: self._as_traced(v, call))
                given = list(refs((found.args, found.kwargs, found.lean)))
                follows = all(map(self._is_alike, read, given))
                if follows and call.is_view:
                    self._move_views(call, read, given)
                if not follows and not handed_over:
                    follows = self._follows(found)
        if not follows:
            raise _LayoutError
        inside = {
            v: self._inside(v) for v in call.outputs if v in self.results and self._is_relaid(v)
        }
        found.outputs = [inside.get(v, v) for v in call.outputs]
        self.new.append(found)
        for v, relaid in inside.items():
            self._hand_over(v, relaid, call)

    def _move_views(self, call: Call, read: Sequence[int], given: Sequence[int]) -> None:
        """Let the outputs of `call` show what it is `given`: a copy, perhaps, of what was read."""
        moved = {
            self.old.values[r].storage: self.new.values[g].storage
            for r, g in zip(read, given, strict=True)
        }
        for v in call.outputs:
            if v >= 0:
                self.new.values[v].storage = moved[self.old.values[v].storage]

    def _inside(self, v: int) -> int:
        """A number of its own for the relaid form of a result, whose number others know."""
        self.new.values.append(self.new.values[v])
        number = len(self.new.values) - 1
        if _is_channels_last(self.new.values[v]):
            self.copies |= {(v, _CHANNELS_LAST, backward): number for backward in (False, True)}
        return number

    def _hand_over(self, v: int, relaid: int, maker: Call) -> None:
        """Copy `relaid` into the result `v`, with the very strides that were traced."""
        self._copied(relaid, maker, self._traced_order(v), into=v)
        if not self._is_alike(v, v):
            raise _LayoutError

    def _is_alike(self, v: int, now: int) -> bool:
        old = self.old.values[v]
        return same_strides(old.shape, old.stride, self.new.values[now].stride)

    def _with(self, call: Call, change: Any) -> Call:
        """`call` with other values as its arguments."""
        lean = call.lean and (call.lean[0], map_refs(call.lean[1], lambda v: Ref(change(v))))
        return replace(
            call,
            args=map_refs(call.args, lambda v: Ref(change(v))),
            kwargs=map_refs(call.kwargs, lambda v: Ref(change(v))),
            lean=lean,
            outputs=list(call.outputs),
            tokens=tuple(self.moved[token] for token in call.tokens),
        )

    def _follows(self, call: Call) -> bool:
        """Give the outputs of `call` the layouts that follow from its arguments, if it has any."""
        given: dict[int, torch.Tensor] = {}
        with self.mode, torch.no_grad():

            def fake(v: int) -> torch.Tensor:
                if v not in given:
                    given[v] = empty_of(self.new.values[v])
                return given[v]

            try:
                made = call.target(*map_refs(call.args, fake), **map_refs(call.kwargs, fake))
            except (RuntimeError, TypeError, ValueError, NotImplementedError):
                return False
        places = {storage_key(t): self.new.values[v].storage for v, t in given.items()}
        found: list[tuple[int, torch.Tensor]] = []
        for v, tensor in zip(call.outputs, made if call.is_tuple else (made,), strict=False):
            if v < 0:
                continue
            meant = self.old.values[v]
            fits = isinstance(tensor, torch.Tensor) and tuple(tensor.shape) == meant.shape
            if not fits or tensor.dtype != meant.dtype:
                return False
            if (storage_key(tensor) in places) != call.is_view:
                return False
            found.append((v, tensor))
        for v, tensor in found:
            value = self.new.values[v]
            value.stride = tuple(tensor.stride())
            if call.is_view:
                value.storage = places[storage_key(tensor)]
            else:
                size_bytes = tensor.untyped_storage().nbytes()
                self.new.storages[value.storage].size_bytes = size_bytes
        return True

    def _is_relaid(self, v: int) -> bool:
        moved = self.old.values[v].storage != self.new.values[v].storage
        return moved or not self._is_alike(v, v)

    def _channels_last(self, v: int, reader: Call) -> int:
        """`v`, or a copy of it, in channels-last."""
        if _is_channels_last(self.new.values[v]):
            return v
        return self._copy(v, reader, _CHANNELS_LAST)

    def _planes(self, v: int, reader: Call) -> int:
        """`v`, or a copy of it, with one channel behind the other."""
        value = self.new.values[v]
        contiguous = torch.empty(value.shape, device="meta").stride()
        if same_strides(value.shape, value.stride, contiguous):
            return v
        return self._copy(v, reader, _PLANES)

    def _as_traced(self, v: int, reader: Call) -> int:
        """`v`, or a copy of it in the order of dimensions that was traced."""
        if self._is_relaid(v) and reader.target in _OF_STORAGES and v in refs(reader.args[:1]):
            raise _LayoutError
        if self._is_alike(v, v):
            return v
        return self._copy(v, reader, self._traced_order(v))

    def _traced_order(self, v: int) -> tuple[int, ...]:
        """The dimensions of `v` as they lay in memory when it was traced, the outermost first."""
        stride = self.old.values[v].stride
        return tuple(sorted(range(len(stride)), key=lambda d: (-stride[d], d)))

    def _copy(self, v: int, reader: Call, order: tuple[int, ...]) -> int:
        """A copy of `v` whose dimensions lie in `order`, one for each half of the step."""
        key = v, order, self.backward
        if key not in self.copies:
            self.copies[key] = self._copied(v, reader, order)
        return self.copies[key]

    def _copied(self, v: int, reader: Call, order: tuple[int, ...], into: int = -1) -> int:
        """A copy of `v` whose dimensions lie in `order`; as the value `into`, if one is given."""
        back = [order.index(dimension) for dimension in range(len(order))]
        ordered = self._made(v, reader, aten.permute.default, list(order))
        copied = self._made(ordered, reader, aten.clone.default)
        self.new.calls[-1].kwargs = {"memory_format": torch.contiguous_format}
        return self._made(copied, reader, aten.permute.default, back, into=into)

    def _made(self, v: int, reader: Call, target: Any, *args: Any, into: int = -1) -> int:
        """The result of a call of `target` on `v`, which is appended for `reader`."""
        value, name = self.new.values[v], f"{reader.name}.{len(self.new.calls)}"
        is_view = target is not aten.clone.default
        shape = tuple(value.shape[d] for d in args[0]) if is_view else value.shape
        stride = (
            tuple(value.stride[d] for d in args[0])
            if is_view
            else torch.empty(shape, device="meta").stride()
        )
        storage = value.storage
        if not is_view:
            size_bytes = value.dtype.itemsize * math.prod(shape)
            self.new.storages.append(Storage(size_bytes, "computed"))
            storage = len(self.new.storages) - 1
        if into < 0:
            into = len(self.new.values)
            self.new.values.append(value)
        self.new.values[into] = Value(storage, shape, stride, value.dtype, value.device)
        call = Call(name, target, (Ref(v), *args), {}, is_view=is_view, phase=reader.phase)
        call.module, call.outputs = reader.module, [into]
        self.new.append(call)
        return into


_OF_STORAGES = frozenset({*COPIES_OF_STORAGES, aten.as_strided.default})
"""Ops that see how their first argument lies in memory."""


def _first(call: Call) -> list[int]:
    """The tensors of a convolution whose layout its kernel looks at."""
    num_first = 2 if call.target is aten.convolution.default else 3  # the gradient comes first
    return list(refs(tuple(call.args[:num_first])))


def _is_of_images(program: Program, call: Call) -> bool:
    """Whether a convolution has two dimensions: others have no such layout, beside images too."""
    return all(len(program.values[v].shape) == 4 for v in _first(call))


def _may_follow(call: Call) -> bool:
    """Whether the outputs of `call` are laid out as its inputs are, whatever that is."""
    if call.target in _OF_STORAGES or call.tokens or call.lean:
        return False
    return call.is_view or call.target in _FOLLOWING or fusible_target(call.target)


def _is_channels_last(value: Value) -> bool:
    if len(value.shape) != 4:
        return False
    _, c, h, w = value.shape
    return same_strides(value.shape, value.stride, (h * w * c, 1, w * c, c))
