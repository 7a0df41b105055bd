"""The walk through everything that a step can read, which finds the places that hold state."""

from __future__ import annotations

import functools
import io
import os
import sys
import types
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from schedsim.errors import UnsupportedError

from ..torch_private.custom_ops import given_functions
from .generator_places import generator_place, torch_generator_place
from .reach import is_library
from .state_change import ATOMS, GONE
from .watched_places import (
    NamedPlaces,
    Place,
    SequencePlace,
    ValuePlace,
    attribute,
    cell_place,
    contents,
    context_place,
    fill,
    held_by,
    store_in,
)

MOST_PLACES = 500_000
_MOST_ARRAY_BYTES = 2**24
HOOKS = frozenset(
    {
        "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
        "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs",
        "_forward_hooks_always_called",
    }
)  # fmt: skip
"""Tables of a module's hooks."""
_STRUCTURE = ("_parameters", "_buffers", "_modules", *HOOKS)
# Attributes of modules that a step does not read.
_UNREAD = frozenset(
    {
        "_non_persistent_buffers_set", "_state_dict_hooks", "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_is_full_backward_hook",
        "_version", "call_super_init", "dump_patches",
    }
)  # fmt: skip
# Modules of Python whose objects contain what users put there.
_PLAIN_OBJECTS = frozenset({"types", "argparse", "collections", "functools", "builtins"})


def form_of(tensor: Tensor) -> tuple[Any, ...]:
    """What a graph takes for granted of `tensor`: shape, strides, type, device."""
    if tensor.layout is not torch.strided:
        return (tuple(tensor.shape), tensor.dtype, tensor.device, tensor.requires_grad)
    stride = tensor.stride()
    return (tuple(tensor.shape), stride, tensor.dtype, tensor.device, tensor.requires_grad)


class StateWalk:
    """Finds all places, breadth first, each object once."""

    def __init__(self, names: frozenset[str] | None, skip: frozenset[str]) -> None:
        self.names, self.skip = names, skip
        self.wanted: Callable[[Any], bool] | None = None
        if names is not None:
            structure = frozenset(_STRUCTURE)
            self.wanted = lambda key: key in names or key in structure
        self.pending: deque[tuple[str, Any]] = deque()
        self.places: list[Place] = []
        self.empty: list[tuple[str, Any, Any]] = []
        self.tensors: list[tuple[str, Tensor, Any]] = []
        self.generators: list[ValuePlace] = []
        self.torch_generators: list[ValuePlace] = []
        self.iterators: list[str] = []
        self.seen: dict[int, Any] = {}

    def run(self) -> None:
        """Walk everything that is pending."""
        while self.pending:
            path, value = self.pending.popleft()
            if isinstance(value, ATOMS) or id(value) in self.seen:
                continue
            self.seen[id(value)] = value
            self._visit(path, value)
            if len(self.places) > MOST_PLACES:
                raise UnsupportedError(
                    f"more than {MOST_PLACES} places are reachable from the step, up to {path}",
                    hint="keep data sets and logs out of the attributes that forward reads",
                )

    def scope(self, scope: dict[str, Any], names: frozenset[str]) -> None:
        """Add globals, of which `names` are read."""
        module = scope.get("__name__", "globals")
        self._names(module, scope, ".{}", names.__contains__)

    def environment(self, names: frozenset[str]) -> None:
        """Add those of the environment's variables that have these names, or get one of them."""

        def view() -> dict[str, str]:
            return {name: os.environ[name] for name in names if name in os.environ}

        def write(saved: Mapping[Any, Any]) -> None:
            for name in names:
                store(name, saved.get(name, GONE))

        def store(name: Any, value: Any) -> None:
            if value is GONE:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

        if names:
            saved = view()
            self.places.append(
                NamedPlaces(
                    "os.environ", os.environ, view, write, store, None, "[{!r}]", saved,
                    [*saved.items()],
                )
            )  # fmt: skip

    def _visit(self, path: str, value: Any) -> None:
        if isinstance(value, nn.Module):
            self._module(path, value)
        elif isinstance(value, Tensor):
            if isinstance(value, nn.Parameter) or not value.requires_grad or value.is_leaf:
                self.tensors.append((path, value, form_of(value)))
        elif isinstance(value, dict):
            self._names(path, value, "[{!r}]", None)
        elif isinstance(value, types.MappingProxyType):
            self._read_only(path, value)
        elif isinstance(value, list | deque | set):
            self.places.append(SequencePlace(path, value, type(value)(value)))
            self.pending += [(f"{path}[{i}]", item) for i, item in enumerate(value)]
        elif isinstance(value, tuple | frozenset):
            self.pending += [(f"{path}[{i}]", item) for i, item in enumerate(value)]
        elif isinstance(value, types.FunctionType):
            self._function(path, value)
        elif isinstance(value, types.MethodType):
            self.pending += [(path, value.__func__), (f"{path}.__self__", value.__self__)]
        elif isinstance(value, functools.partial):
            parts = (("func", value.func), ("args", value.args), ("keywords", value.keywords))
            self.pending += [(f"{path}.{name}", part) for name, part in parts]
        elif isinstance(value, types.BuiltinMethodType):
            if not isinstance(value.__self__, types.ModuleType | type(None)):
                self.pending.append((path, value.__self__))
        elif isinstance(value, property):
            self.pending += [(path, f) for f in (value.fget, value.fset) if f is not None]
        elif isinstance(value, staticmethod | classmethod):
            self.pending.append((path, value.__func__))
        elif isinstance(value, types.ModuleType):
            if not is_library(value.__name__) and self.names is not None:
                self._names(path, vars(value), ".{}", self.names.__contains__)
        elif isinstance(value, type):
            self._class(path, value)
        else:
            self._object(path, value)

    def _module(self, path: str, module: nn.Module) -> None:
        if isinstance(module, torch.jit.ScriptModule):  # its tables are TorchScript's
            held = [*module.named_parameters(), *module.named_buffers()]
            self.pending += [(f"{path}.{name}", tensor) for name, tensor in held]
            return
        attributes = vars(module)
        for name in _STRUCTURE:
            content = attributes.get(name)
            if name in self.skip:
                self.seen[id(content)] = content
            elif isinstance(content, dict) and not content:
                self.empty.append((f"{path}.{name}", content, module))
                self.seen[id(content)] = content
            elif content:
                form = f".{name}[{{!r}}]" if name in HOOKS else ".{}"
                self._names(path, content, form, None, owner=module)
                self.seen[id(content)] = content
        names = self.names

        def wanted(key: Any) -> bool:
            if key in _UNREAD:
                return False
            return names is None or key in names or key in _STRUCTURE

        self._names(path, attributes, ".{}", wanted, owner=module)
        self._classes_of(path, module)

    def _names(
        self,
        path: str,
        mapping: dict[Any, Any],
        form: str,
        wanted: Callable[[Any], bool] | None,
        owner: Any = None,
    ) -> None:
        def write(saved: Mapping[Any, Any]) -> None:
            fill(mapping, saved)

        store = store_in(mapping)
        is_scope = "__builtins__" in mapping
        if is_scope:  # globals: only names that are read are restored

            def write(saved: Mapping[Any, Any]) -> None:
                for key, value in saved.items():
                    mapping[key] = value

        saved = contents(mapping)
        watched = [(k, v) for k, v in saved.items() if wanted is None or wanted(k)]
        if is_scope:
            saved = dict(watched)
            view: Callable[[], Mapping[Any, Any]] = lambda: {  # noqa: E731
                key: mapping[key] for key in saved if key in mapping
            }
        else:
            view = lambda: mapping  # noqa: E731
        self.places.append(
            NamedPlaces(
                path,
                mapping if owner is None else owner,
                view,
                write,
                store,
                wanted,
                form,
                saved,
                watched,
            )
        )
        self.pending += [(path + form.format(key), value) for key, value in watched]

    def _read_only(self, path: str, mapping: Mapping[Any, Any]) -> None:
        saved = dict(mapping)

        def write(_: Mapping[Any, Any]) -> None:
            """Do nothing: this place is for others to change."""

        def store(key: Any, value: Any) -> None:
            """Do nothing: this place is for others to change."""

        items = [*saved.items()]
        self.places.append(
            NamedPlaces(path, mapping, lambda: mapping, write, store, None, "[{!r}]", saved, items)
        )
        self.pending += [(f"{path}[{key!r}]", value) for key, value in saved.items()]

    def _function(self, path: str, function: types.FunctionType) -> None:
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name):
                self.places.append(attribute(f"{path}.{name}", function, name))
                self.pending.append((path, getattr(function, name)))
        if is_library(function.__module__) and not function.__closure__:
            return
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=False
        ):
            if id(cell) in self.seen:
                continue
            self.seen[id(cell)] = cell
            self.places.append(cell_place(f"{path}: {name}", cell))
            content = held_by(cell)
            if content is not GONE:
                self.pending.append((f"{path}: {name}", content))
        if vars(function):
            self._names(path, vars(function), ".{}", self.wanted)

    def _class(self, path: str, kind: type) -> None:
        if is_library(kind.__module__) or not isinstance(vars(kind), types.MappingProxyType):
            return
        names = self.names

        def wanted(key: Any) -> bool:
            if key in ("__dict__", "__weakref__", "__doc__", "__annotations__", "_abc_impl"):
                return False
            return names is None or key in names or key in ("forward", "__call__")

        def write(saved: Mapping[Any, Any]) -> None:
            for key, value in watched:
                if vars(kind).get(key, GONE) is not value:
                    setattr(kind, key, value)

        def store(key: Any, value: Any) -> None:
            if value is not GONE:
                setattr(kind, key, value)
            elif key in vars(kind):
                delattr(kind, key)

        saved = dict(vars(kind))
        watched = [(key, value) for key, value in saved.items() if wanted(key)]
        self.places.append(
            NamedPlaces(path, kind, lambda: vars(kind), write, store, wanted, ".{}", saved, watched)
        )
        self.pending += [(f"{path}.{key}", value) for key, value in watched]

    def _classes_of(self, path: str, value: Any) -> None:
        for kind in type(value).__mro__:
            if id(kind) not in self.seen and not is_library(kind.__module__):
                self.seen[id(kind)] = kind
                self._class(kind.__qualname__, kind)

    def _object(self, path: str, value: Any) -> None:
        generator = generator_place(path, value)
        if generator is not None:
            self.generators.append(generator)
            return
        if isinstance(value, np.ndarray):
            self._array(path, value)
            return
        if isinstance(value, torch.Generator):  # ops draw from it, and advance it when they run
            self.torch_generators.append(torch_generator_place(path, value))
            return
        if isinstance(value, ContextVar):
            place = context_place(path, value)
            self.places.append(place)
            self.pending.append((path, place.saved))
            return
        if type(value).__module__.partition(".")[0] == "schedsim":
            inner = getattr(value, "inner_loss", None)
            self.pending += [] if inner is None else [(path, inner)]
            return
        given = given_functions(value)
        if given is not None:  # torch sets flags beside these when the op first runs
            self.pending += [(f"{path}.{name}", function) for name, function in given.items()]
            return
        if isinstance(value, io.IOBase) and (value.closed or not value.readable()):
            return  # a stream that is written to: there is nothing in it to use up
        if hasattr(type(value), "__next__"):
            self.iterators.append(path)
            return
        root = type(value).__module__.partition(".")[0]
        if root in sys.stdlib_module_names and root not in _PLAIN_OBJECTS:
            return  # loggers, locks, contexts of decorators
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict) and not isinstance(value, type):
            wanted = self.wanted
            if root == "torch" and hasattr(type(value), "__enter__"):
                wanted = self._wanted_of_context
            self._names(path, attributes, ".{}", wanted, owner=value)
        slots = [
            name
            for kind in type(value).__mro__
            for name in slots_of(kind)
            if isinstance(getattr(kind, name, None), types.MemberDescriptorType)
        ]
        for name in slots:
            if (self.names is None or name in self.names) and hasattr(value, name):
                self.places.append(attribute(f"{path}.{name}", value, name))
                self.pending.append((f"{path}.{name}", getattr(value, name)))
        if isinstance(value, Mapping | list | tuple) and not isinstance(attributes, dict):
            return
        self._classes_of(path, value)

    def _wanted_of_context(self, key: Any) -> bool:
        """What a step reads of a context of torch, as of autocast around a forward.

        What was before it is entered, it notes itself, for its exit.
        """
        is_note = isinstance(key, str) and key.startswith("prev")
        return not is_note and (self.wanted is None or self.wanted(key))

    def _array(self, path: str, array: np.ndarray[Any, Any]) -> None:
        if array.dtype.hasobject or array.nbytes > _MOST_ARRAY_BYTES:
            self._large_array(path, array)
            return

        def write(saved: Any) -> None:
            np.copyto(array, saved)

        equal: Any = functools.partial(np.array_equal, equal_nan=array.dtype.kind in "fc")
        self.places.append(ValuePlace(path, lambda: array, write, equal, array.copy(), "array"))

    def _large_array(self, path: str, array: np.ndarray[Any, Any]) -> None:
        """Watch a large array, by a sum over its bytes."""
        import zlib

        def read() -> int:
            return zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data)

        if not array.dtype.hasobject:
            same_sum: Any = int.__eq__
            self.places.append(ValuePlace(path, read, lambda _: None, same_sum, read(), "array"))


def slots_of(kind: type) -> tuple[str, ...]:
    """The names of the slots that a class itself declares."""
    found = kind.__dict__.get("__slots__", ())
    return (found,) if isinstance(found, str) else tuple(found)
