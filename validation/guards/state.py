"""The Python state that a step can read, recorded: it is compared, differences named, restored.

Everything that can be reached from the model, the loss and the globals that their code reads is
walked once: attributes of modules and of plain objects, items of containers, hooks, closures,
defaults of functions, attributes of classes, generators and NumPy arrays. What a place holds is
compared by identity, except numbers and strings, which are compared by value. Tensors are compared
by identity and form, because the graph reads their content when it runs.
"""

from __future__ import annotations

import functools
import io
import os
import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, MutableSet
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from schedsim.errors import UnsupportedError

from .reach import Reach, is_library

MOST_PLACES = 500_000
_MOST_ARRAY_BYTES = 2**24
_GONE = object()
_ATOMS = (
    int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.layout,
    torch.memory_format, torch.Size, range, slice, type(...), np.generic, Enum,
)  # fmt: skip
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


class StateChange(NamedTuple):
    """A place whose content has changed."""

    path: str
    before: Any
    now: Any
    owner: Any = None

    def __str__(self) -> str:
        if self.before is _GONE:
            return f"{self.path} is new"
        if self.now is _GONE:
            return f"{self.path} is gone"
        before, now = shown(self.before), shown(self.now)
        if before == now:
            return f"{self.path} is another {before}"
        return f"{self.path} is {now} instead of {before}"

    @property
    def is_replacement(self) -> bool:
        """Whether a tensor or module left its place, so that the former state will not return."""
        return isinstance(self.before, Tensor | nn.Module)


def shown(value: Any) -> str:
    """`value` in a few words."""
    if isinstance(value, Tensor):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    if isinstance(value, _ATOMS):
        text = repr(value)
        return text if len(text) <= 40 else text[:37] + "..."
    if isinstance(value, types.FunctionType | types.MethodType):
        return f"function {value.__qualname__}"
    return type(value).__name__


def same(one: Any, two: Any) -> bool:
    """Whether two contents of a place, at two times, are the same to a step.

    Examples
    --------
    >>> same(0.5, 0.5), same(1, 1.0), same([], []), same((1, "a"), (1, "a"))
    (True, False, False, True)
    """
    if one is two:
        return True
    if type(one) is not type(two):
        return False
    if isinstance(one, float) and one != one:
        return bool(two != two)
    if isinstance(one, _ATOMS):
        return bool(one == two)
    if isinstance(one, tuple):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, types.MethodType):
        return one.__self__ is two.__self__ and one.__func__ is two.__func__
    return False


@dataclass(slots=True)
class _NamedPlaces:
    """Places with names: those of a dictionary, of a class, of an object with slots."""

    path: str
    owner: Any
    view: Callable[[], Mapping[Any, Any]]
    write: Callable[[Mapping[Any, Any]], None]
    store: Callable[[Any, Any], None]
    wanted: Callable[[Any], bool] | None
    form: str
    saved: dict[Any, Any]
    watched: list[tuple[Any, Any]]

    def changes(self) -> Iterable[StateChange]:
        now = self.view()
        get = partial(dict.get, now) if isinstance(now, dict) else now.get
        for key, value in self.watched:
            found = get(key, _GONE)
            if found is not value and not same(found, value):
                yield StateChange(self.path + self.form.format(key), value, found, self.owner)
        if now.keys() != self.saved.keys():
            for key in now:
                if key not in self.saved and (self.wanted is None or self.wanted(key)):
                    path = self.path + self.form.format(key)
                    yield StateChange(path, _GONE, get(key, None), self.owner)

    def changed_keys(self) -> tuple[Any, ...]:
        """The keys whose content has changed, whether they are read or not."""
        now = _contents(self.view())
        keys = {**self.saved, **now}
        return tuple(
            key for key in keys if not same(now.get(key, _GONE), self.saved.get(key, _GONE))
        )

    def take(self) -> Any:
        return _contents(self.view())

    def put(self, content: Any) -> None:
        self.write(content)

    def restore(self) -> None:
        now = _contents(self.view())
        if len(now) != len(self.saved) or any(
            a != b or now[a] is not self.saved[b] for a, b in zip(now, self.saved, strict=True)
        ):
            self.write(self.saved)


@dataclass(slots=True)
class _Keys:
    """Some of the names of a place."""

    path: str
    owner: Any
    names: _NamedPlaces
    keys: tuple[Any, ...]

    def changes(self) -> Iterable[StateChange]:
        return ()

    def take(self) -> Any:
        now = _contents(self.names.view())
        return {key: now.get(key, _GONE) for key in self.keys}

    def put(self, content: Any) -> None:
        for key, value in content.items():
            self.names.store(key, value)

    def restore(self) -> None:
        """Do nothing: these places are only taken and put."""


@dataclass(slots=True)
class _Sequence:
    """The items of a list, deque or set."""

    path: str
    owner: Any
    saved: Any

    def changes(self) -> Iterable[StateChange]:
        now, saved = self.owner, self.saved
        if isinstance(now, set | MutableSet):
            if now != saved:
                yield StateChange(self.path, f"{len(saved)} items", f"{len(now)} items", self.owner)
        elif len(now) != len(saved):
            yield StateChange(self.path, f"{len(saved)} items", f"{len(now)} items", self.owner)
        else:
            for i, (found, value) in enumerate(zip(now, saved, strict=True)):
                if found is not value and not same(found, value):
                    yield StateChange(f"{self.path}[{i}]", value, found, self.owner)

    def take(self) -> Any:
        return list(self.owner)

    def put(self, content: Any) -> None:
        self.owner.clear()
        (self.owner.update if isinstance(self.owner, set) else self.owner.extend)(content)

    def restore(self) -> None:
        if next(iter(self.changes()), None) is not None:
            self.put(self.saved)


@dataclass(slots=True)
class _StateValue:
    """One content that functions read and write: a cell, a generator, an array."""

    path: str
    read: Callable[[], Any]
    write: Callable[[Any], None]
    equal: Callable[[Any, Any], bool]
    saved: Any
    what: str = ""

    def changes(self) -> Iterable[StateChange]:
        now = self.read()
        if not self.equal(now, self.saved):
            before, now = (self.saved, now) if not self.what else (f"{self.what} as it was", "on")
            yield StateChange(self.path, before, now)

    def take(self) -> Any:
        content = self.read()
        return content.copy() if isinstance(content, np.ndarray) else content

    def put(self, content: Any) -> None:
        self.write(content)

    def restore(self) -> None:
        if not self.equal(self.read(), self.saved):
            self.write(self.saved)


_Place = _NamedPlaces | _Keys | _Sequence | _StateValue


@dataclass(frozen=True)
class Places:
    """Some places, whose contents can be taken and put back."""

    places: tuple[_Place, ...]

    def __bool__(self) -> bool:
        return bool(self.places)

    def outside(self, prefixes: Iterable[str]) -> Places:
        """The places whose path starts with none of `prefixes`."""
        heads = tuple(prefixes)
        return Places(tuple(p for p in self.places if not f"{p.path}.".startswith(heads)))

    def take(self) -> list[Any]:
        """The present contents of the places."""
        return [place.take() for place in self.places]

    def put(self, contents: list[Any]) -> None:
        """Put back `contents`, which `take` returned."""
        for place, content in zip(self.places, contents, strict=True):
            place.put(content)


NO_PLACES = Places(())


class StateSnapshot:
    """The state reachable from `roots` now.

    Parameters
    ----------
    roots
        Objects to start from, by the name under which changes are reported.
    reach
        Names that the code can look up; without it, everything counts.
    skip
        Tables of modules to leave out, such as ``_buffers``.

    Raises
    ------
    UnsupportedError
        More places are reachable than can be watched.

    Notes
    -----
    O(places reachable), for a comparison too: some milliseconds for a thousand modules.

    Examples
    --------
    >>> model = nn.Dropout(0.5)
    >>> before = StateSnapshot({"model": model})
    >>> model.p = 0.1
    >>> print(before.change())
    model.p is 0.1 instead of 0.5
    >>> before.restore()
    >>> model.p
    0.5
    """

    def __init__(
        self,
        roots: Mapping[str, Any],
        reach: Reach | None = None,
        skip: frozenset[str] = frozenset(),
    ) -> None:
        self.roots = {path: root for path, root in roots.items() if root is not None}
        self.reach = reach or Reach()
        self.skip = skip
        walk = _StateWalk(self.reach.names, skip)
        for path, root in self.roots.items():
            walk.pending.append((path, root))
        walk.run()
        for scope, names in self.reach.scopes:
            walk.scope(scope, names)
        walk.environment(self.reach.variables)
        walk.run()
        self._places, self._empty, self.iterators = walk.places, walk.empty, walk.iterators
        self._generators, self._torch_generators = walk.generators, walk.torch_generators
        self.tensors = {path: tensor for path, tensor, _ in walk.tensors}
        self._tensors = walk.tensors
        self._seen = walk.seen  # kept alive, so that no other object gets the same identity

    @property
    def num_places(self) -> int:
        """Number of containers and other places that are compared."""
        return len(self._places) + len(self._empty)

    def change(self) -> StateChange | None:
        """The first place whose content has changed; ``None`` where nothing has."""
        for path, container, owner in self._empty:
            if container:
                return StateChange(path, "empty", f"{len(container)} items", owner)
        for place in self._places:
            for change in place.changes():
                return change
        for path, tensor, form in self._tensors:
            if _form(tensor) != form:
                return StateChange(path, form, _form(tensor), tensor)
        return None

    def changes(self) -> list[StateChange]:
        """All places whose content has changed."""
        found = [
            StateChange(path, "empty", f"{len(container)} items", owner)
            for path, container, owner in self._empty
            if container
        ]
        for place in self._places:
            found += place.changes()
        return found

    def draws(self) -> list[str]:
        """The generators that have advanced. Other code may draw from them between steps."""
        return [place.path for place in self._generators if next(iter(place.changes()), None)]

    def restore_generators(self) -> None:
        """Set all generators that the step holds itself back."""
        for place in [*self._generators, *self._torch_generators]:
            place.restore()

    def torch_generators(self) -> list[tuple[str, Tensor]]:
        """The present states of torch's generators that the step holds itself, by place."""
        return [(place.path, place.read()) for place in self._torch_generators]

    def again(self) -> StateSnapshot:
        """A snapshot of the same roots as they are now."""
        return self.of({})

    def of(self, roots: Mapping[str, Any]) -> StateSnapshot:
        """A snapshot of the present state, in which `roots` replace those of the same names."""
        return StateSnapshot({**self.roots, **roots}, self.reach, self.skip)

    def restore(self) -> None:
        """Restore all places; tensors keep their content."""
        for _, container, _ in self._empty:
            if container:
                container.clear()
        for place in [*self._places, *self._generators, *self._torch_generators]:
            place.restore()

    def changed(self) -> Places:
        """The places whose content has changed, to be restored any number of times."""
        found: list[_Place] = []
        for place in self._places:
            if isinstance(place, _NamedPlaces):
                if keys := place.changed_keys():
                    found.append(_Keys(place.path, place.owner, place, keys))
            elif next(iter(place.changes()), None):
                found.append(place)
        for path, container, owner in self._empty:
            if container and isinstance(container, dict):
                found.append(_filled(path, container, owner))
        return Places(tuple(found))


def _form(tensor: Tensor) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided:
        return (tuple(tensor.shape), tensor.dtype, tensor.device, tensor.requires_grad)
    stride = tensor.stride()
    return (tuple(tensor.shape), stride, tensor.dtype, tensor.device, tensor.requires_grad)


class _StateWalk:
    """Finds all places, breadth first, each object once."""

    def __init__(self, names: frozenset[str] | None, skip: frozenset[str]) -> None:
        self.names, self.skip = names, skip
        self.wanted: Callable[[Any], bool] | None = None
        if names is not None:
            structure = frozenset(_STRUCTURE)
            self.wanted = lambda key: key in names or key in structure
        self.pending: deque[tuple[str, Any]] = deque()
        self.places: list[_Place] = []
        self.empty: list[tuple[str, Any, Any]] = []
        self.tensors: list[tuple[str, Tensor, Any]] = []
        self.generators: list[_StateValue] = []
        self.torch_generators: list[_StateValue] = []
        self.iterators: list[str] = []
        self.seen: dict[int, Any] = {}

    def run(self) -> None:
        """Walk everything that is pending."""
        while self.pending:
            path, value = self.pending.popleft()
            if isinstance(value, _ATOMS) or id(value) in self.seen:
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
                store(name, saved.get(name, _GONE))

        def store(name: Any, value: Any) -> None:
            if value is _GONE:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

        if names:
            saved = view()
            self.places.append(
                _NamedPlaces(
                    "os.environ", os.environ, view, write, store, None, "[{!r}]", saved,
                    [*saved.items()],
                )
            )  # fmt: skip

    def _visit(self, path: str, value: Any) -> None:
        if isinstance(value, nn.Module):
            self._module(path, value)
        elif isinstance(value, Tensor):
            if isinstance(value, nn.Parameter) or not value.requires_grad or value.is_leaf:
                self.tensors.append((path, value, _form(value)))
        elif isinstance(value, dict):
            self._names(path, value, "[{!r}]", None)
        elif isinstance(value, types.MappingProxyType):
            self._read_only(path, value)
        elif isinstance(value, list | deque | set):
            self.places.append(_Sequence(path, value, type(value)(value)))
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
            _fill(mapping, saved)

        store = _store_in(mapping)
        is_scope = "__builtins__" in mapping
        if is_scope:  # globals: only names that are read are restored

            def write(saved: Mapping[Any, Any]) -> None:
                for key, value in saved.items():
                    mapping[key] = value

        saved = _contents(mapping)
        watched = [(k, v) for k, v in saved.items() if wanted is None or wanted(k)]
        if is_scope:
            saved = dict(watched)
            view: Callable[[], Mapping[Any, Any]] = lambda: {  # noqa: E731
                key: mapping[key] for key in saved if key in mapping
            }
        else:
            view = lambda: mapping  # noqa: E731
        self.places.append(
            _NamedPlaces(
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
            _NamedPlaces(path, mapping, lambda: mapping, write, store, None, "[{!r}]", saved, items)
        )
        self.pending += [(f"{path}[{key!r}]", value) for key, value in saved.items()]

    def _function(self, path: str, function: types.FunctionType) -> None:
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name):
                self.places.append(_attribute(f"{path}.{name}", function, name))
                self.pending.append((path, getattr(function, name)))
        if is_library(function.__module__) and not function.__closure__:
            return
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=False
        ):
            if id(cell) in self.seen:
                continue
            self.seen[id(cell)] = cell
            self.places.append(_cell(f"{path}: {name}", cell))
            content = _content(cell)
            if content is not _GONE:
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
                if vars(kind).get(key, _GONE) is not value:
                    setattr(kind, key, value)

        def store(key: Any, value: Any) -> None:
            if value is not _GONE:
                setattr(kind, key, value)
            elif key in vars(kind):
                delattr(kind, key)

        saved = dict(vars(kind))
        watched = [(key, value) for key, value in saved.items() if wanted(key)]
        self.places.append(
            _NamedPlaces(
                path, kind, lambda: vars(kind), write, store, wanted, ".{}", saved, watched
            )
        )
        self.pending += [(f"{path}.{key}", value) for key, value in watched]

    def _classes_of(self, path: str, value: Any) -> None:
        for kind in type(value).__mro__:
            if id(kind) not in self.seen and not is_library(kind.__module__):
                self.seen[id(kind)] = kind
                self._class(kind.__qualname__, kind)

    def _object(self, path: str, value: Any) -> None:
        if isinstance(value, random.Random):
            state = value.getstate()
            self.generators.append(_StateValue(path, value.getstate, value.setstate, _equal, state))
            return
        if isinstance(value, np.random.Generator):
            bits: Any = value.bit_generator

            def write(state: Any) -> None:
                bits.state = state

            self.generators.append(_StateValue(path, lambda: bits.state, write, _equal, bits.state))
            return
        if isinstance(value, np.random.RandomState):
            legacy: Any = value
            own = legacy.get_state()
            self.generators.append(
                _StateValue(path, legacy.get_state, legacy.set_state, _equal, own)
            )
            return
        if isinstance(value, np.ndarray):
            self._array(path, value)
            return
        if isinstance(value, torch.Generator):  # ops draw from it, and advance it when they run
            source, stands = value, value.get_state()

            def stand(state: Any) -> None:
                source.set_state(state)

            kept = _StateValue(path, source.get_state, stand, torch.equal, stands)
            self.torch_generators.append(kept)
            return
        if type(value).__module__.partition(".")[0] == "schedsim":
            inner = getattr(value, "inner_loss", None)
            self.pending += [] if inner is None else [(path, inner)]
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
            self._names(path, attributes, ".{}", self.wanted, owner=value)
        slots = [
            name
            for kind in type(value).__mro__
            for name in _slots(kind)
            if isinstance(getattr(kind, name, None), types.MemberDescriptorType)
        ]
        for name in slots:
            if (self.names is None or name in self.names) and hasattr(value, name):
                self.places.append(_attribute(f"{path}.{name}", value, name))
                self.pending.append((f"{path}.{name}", getattr(value, name)))
        if isinstance(value, Mapping | list | tuple) and not isinstance(attributes, dict):
            return
        self._classes_of(path, value)

    def _array(self, path: str, array: np.ndarray[Any, Any]) -> None:
        if array.dtype.hasobject or array.nbytes > _MOST_ARRAY_BYTES:
            self.tensors_of_array(path, array)
            return

        def write(saved: Any) -> None:
            np.copyto(array, saved)

        equal: Any = functools.partial(np.array_equal, equal_nan=array.dtype.kind in "fc")
        self.places.append(_StateValue(path, lambda: array, write, equal, array.copy(), "array"))

    def tensors_of_array(self, path: str, array: np.ndarray[Any, Any]) -> None:
        """Watch a large array, by a sum over its bytes."""
        import zlib

        def read() -> int:
            return zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data)

        if not array.dtype.hasobject:
            same_sum: Any = int.__eq__
            self.places.append(_StateValue(path, read, lambda _: None, same_sum, read(), "array"))


def _contents(mapping: Mapping[Any, Any]) -> dict[Any, Any]:
    """The content of a mapping, without methods of a class of its own."""
    return dict(dict.items(mapping)) if isinstance(mapping, dict) else dict(mapping)


def _filled(path: str, mapping: dict[Any, Any], owner: Any) -> _NamedPlaces:
    """Named places of a dictionary that was empty."""
    write, store = functools.partial(_fill, mapping), _store_in(mapping)
    return _NamedPlaces(path, owner, lambda: mapping, write, store, None, "[{!r}]", {}, [])


def _store_in(mapping: dict[Any, Any]) -> Callable[[Any, Any], None]:
    kind = _kind(mapping)

    def store(key: Any, value: Any) -> None:
        if value is _GONE:
            kind.pop(mapping, key, None)
        else:
            kind.__setitem__(mapping, key, value)

    return store


def _kind(mapping: dict[Any, Any]) -> type[dict[Any, Any]]:
    """Whose methods write to `mapping`: not those of a class of its own, but of an ordered one."""
    return OrderedDict if isinstance(mapping, OrderedDict) else dict


def _fill(mapping: dict[Any, Any], saved: Mapping[Any, Any]) -> None:
    """Let `mapping` contain what is in `saved`, in its order."""
    kind = _kind(mapping)
    kind.clear(mapping)
    for key, value in saved.items():
        kind.__setitem__(mapping, key, value)


def _slots(kind: type) -> tuple[str, ...]:
    found = kind.__dict__.get("__slots__", ())
    return (found,) if isinstance(found, str) else tuple(found)


def _attribute(path: str, owner: Any, name: str) -> _StateValue:
    def write(value: Any) -> None:
        setattr(owner, name, value)

    def read() -> Any:
        return getattr(owner, name, _GONE)

    return _StateValue(path, read, write, same, read())


def _cell(path: str, cell: types.CellType) -> _StateValue:
    def write(value: Any) -> None:
        if value is not _GONE:
            cell.cell_contents = value

    return _StateValue(path, lambda: _content(cell), write, same, _content(cell))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return _GONE


def _equal(one: Any, two: Any) -> bool:
    """Equality through dictionaries and tuples with arrays in them."""
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(_equal(one[key], two[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(two) and all(map(_equal, one, two))
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, two))
    return bool(one == two)
