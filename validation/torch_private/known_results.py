"""Results of ops on fake tensors, made anew where an op ran on equal ones before.

A step of many equal blocks runs few different ops: what one gives depends on sizes, strides and
types alone. Fake tensors remember results too, but describe all arguments anew for every op, which
takes more time than to make the result.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
)

from .op_modes import schema_of
from .storage_refs import storage_key

_UNSURE = (
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
)
_PLAIN = frozenset(
    (
        int,
        float,
        bool,
        str,
        type(None),
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    )
)


class _Made(NamedTuple):
    """A tensor that an op made."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device


class _UnknownError(Exception):
    """An argument whose description is not complete."""


class KnownResults:
    """Runs ops on fakes of `mode`, each on equal arguments once.

    Arguments must live as long as this object, and keep their sizes and strides.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._made: dict[Any, tuple[type | None, list[_Made | None]] | None] = {}
        self._kinds: dict[tuple[Any, ...], int] = {}  # a description -> its number
        self._kind_of: dict[int, int] = {}  # id of a tensor -> the number of its description

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What ``func(*args, **kwargs)`` gives."""
        way = _way(func)
        if way is None:
            return func(*args, **kwargs)
        try:
            given = self._described(args)
            named = self._described(tuple(kwargs.items())) if kwargs else ()
        except _UnknownError:
            return func(*args, **kwargs)
        key = func, given, named, torch.get_default_dtype()
        if key not in self._made:
            made = func(*args, **kwargs)
            self._made[key] = self._recipe(made, args[0] if way == "view" else None)
            return made
        recipe = self._made[key]
        if recipe is None:
            return func(*args, **kwargs)
        kind, parts = recipe
        source = args[0].untyped_storage() if way == "view" else None
        anew = [None if part is None else self._anew(part, source) for part in parts]
        return anew[0] if kind is None else kind(anew)

    def _described(self, tree: Any) -> Any:
        kind = type(tree)
        if kind is FakeTensor:
            return self._number(tree)
        if kind is tuple or kind is list or kind is torch.Size:
            return (kind, *[self._described(item) for item in tree])
        if kind in _PLAIN:
            return kind, tree
        raise _UnknownError

    def _number(self, tensor: FakeTensor) -> tuple[int]:
        number = self._kind_of.get(id(tensor))
        if number is None:
            if _is_odd(tensor):
                raise _UnknownError
            description = (
                tuple(tensor.shape),
                tensor.stride(),
                tensor.storage_offset(),
                tensor.untyped_storage().nbytes(),
                tensor.dtype,
                tensor.fake_device,
            )
            number = self._kinds.setdefault(description, len(self._kinds))
            self._kind_of[id(tensor)] = number
        return (number,)

    def _recipe(
        self, made: Any, source: torch.Tensor | None
    ) -> tuple[type | None, list[_Made | None]] | None:
        """How to make `made` anew: views of `source`, or tensors in memory of their own.

        ``None`` if it takes more than that.
        """
        several = type(made) in (tuple, list)
        parts: list[_Made | None] = []
        seen: set[int] = set()
        for part in made if several else (made,):
            if part is None and source is None:
                parts.append(None)
                continue
            if type(part) is not FakeTensor or _is_odd(part):
                return None
            found = _Made(
                tuple(part.shape),
                part.stride(),
                int(part.storage_offset()),
                part.dtype,
                part.fake_device,
            )
            if source is None:
                whole = torch._prims_common.compute_required_storage_length(*found[:3])
                own = part.untyped_storage().nbytes() == whole * part.dtype.itemsize
                if found.offset or not own or storage_key(part) in seen:
                    return None
                seen.add(storage_key(part))
            elif storage_key(part) != storage_key(source) or part.dtype != source.dtype:
                return None
            parts.append(found)
        return (type(made) if several else None), parts

    def _anew(self, part: _Made, source: torch.UntypedStorage | None) -> FakeTensor:
        with in_kernel_invocation_manager(self._mode):
            if source is None:
                made = torch.empty_strided(part.shape, part.stride, dtype=part.dtype, device="meta")
            else:
                made = torch.empty(0, dtype=part.dtype, device="meta")
                made.set_(source, part.offset, part.shape, part.stride)
        return FakeTensor(self._mode, made, part.device)


def _is_odd(tensor: FakeTensor) -> bool:
    """Whether sizes, strides and types are not all that there is to say of `tensor`."""
    strided = tensor.layout is torch.strided and not tensor._has_symbolic_sizes_strides
    return tensor.is_conj() or tensor.is_neg() or not strided or tensor.constant is not None


@functools.cache
def _way(func: Any) -> str | None:
    """``"view"`` or ``"fresh"``; ``None`` for an op whose results may depend on more than sizes."""
    schema = schema_of(func)
    if schema is None or schema.is_mutable or func.namespace != "aten":
        return None
    if any(tag in func.tags for tag in _UNSURE) or "lift" in schema.name:
        return None
    aliases = [result.alias_info is not None for result in schema.returns]
    if not aliases or "unsafe" in schema.name:
        return None
    if not any(aliases):
        return "fresh"
    first = schema.arguments[0]
    known = str(first.type) == "Tensor" and first.alias_info is not None
    return "view" if len(aliases) == 1 and known else None
