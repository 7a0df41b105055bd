"""Places that hold Python state: each tells its changes, and can be taken, put back, restored."""

from __future__ import annotations

import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, MutableSet
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from operator import is_
from typing import Any

import numpy as np

from .state_change import GONE, StateChange, same


@dataclass(slots=True)
class NamedPlaces:
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
            found = get(key, GONE)
            if found is not value and not same(found, value):
                yield StateChange(self.path + self.form.format(key), value, found, self.owner)
        if now.keys() != self.saved.keys():
            for key in now:
                if key not in self.saved and (self.wanted is None or self.wanted(key)):
                    path = self.path + self.form.format(key)
                    yield StateChange(path, GONE, get(key, None), self.owner)

    def changed_keys(self) -> tuple[Any, ...]:
        """The keys whose content has changed, whether they are read or not."""
        now = contents(self.view())
        keys = {**self.saved, **now}
        return tuple(key for key in keys if not same(now.get(key, GONE), self.saved.get(key, GONE)))

    def take(self) -> Any:
        return contents(self.view())

    def put(self, content: Any) -> None:
        self.write(content)

    def is_as_saved(self) -> bool:
        now, saved = contents(self.view()), self.saved
        return (
            len(now) == len(saved)
            and all(map(is_, now.values(), saved.values()))
            and all(map(_same_key, now, saved))
        )

    def restore(self) -> None:
        if not self.is_as_saved():
            self.write(self.saved)


@dataclass(slots=True)
class SomeNames:
    """Some of the names of a place."""

    path: str
    owner: Any
    names: NamedPlaces
    keys: tuple[Any, ...]

    def changes(self) -> Iterable[StateChange]:
        return ()

    def take(self) -> Any:
        now = contents(self.names.view())
        return {key: now.get(key, GONE) for key in self.keys}

    def put(self, content: Any) -> None:
        for key, value in content.items():
            self.names.store(key, value)

    def is_as_saved(self) -> bool:
        return True

    def restore(self) -> None:
        """Do nothing: these places are only taken and put."""


@dataclass(slots=True)
class SequencePlace:
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

    def is_as_saved(self) -> bool:
        return next(iter(self.changes()), None) is None

    def restore(self) -> None:
        if not self.is_as_saved():
            self.put(self.saved)


@dataclass(slots=True)
class ValuePlace:
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

    def is_as_saved(self) -> bool:
        return self.equal(self.read(), self.saved)

    def restore(self) -> None:
        if not self.is_as_saved():
            self.write(self.saved)


Place = NamedPlaces | SomeNames | SequencePlace | ValuePlace
"""One place, or several with names."""


@dataclass(frozen=True)
class Places:
    """Some places, whose contents can be taken and put back."""

    places: tuple[Place, ...]

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


def _same_key(one: Any, two: Any) -> bool:
    # An optimizer's state has tensors as keys: `==` compares their entries, a hash the objects.
    return one is two or bool(hash(one) == hash(two) and one == two)


def contents(mapping: Mapping[Any, Any]) -> dict[Any, Any]:
    """The content of a mapping, without methods of a class of its own."""
    return dict(dict.items(mapping)) if isinstance(mapping, dict) else dict(mapping)


def filled(path: str, mapping: dict[Any, Any], owner: Any) -> NamedPlaces:
    """Named places of a dictionary that was empty."""
    write, store = partial(fill, mapping), store_in(mapping)
    return NamedPlaces(path, owner, lambda: mapping, write, store, None, "[{!r}]", {}, [])


def store_in(mapping: dict[Any, Any]) -> Callable[[Any, Any], None]:
    """A function that writes one item of `mapping`, or takes it away for `GONE`."""
    kind = _kind(mapping)

    def store(key: Any, value: Any) -> None:
        if value is GONE:
            kind.pop(mapping, key, None)
        else:
            kind.__setitem__(mapping, key, value)

    return store


def _kind(mapping: dict[Any, Any]) -> type[dict[Any, Any]]:
    """Whose methods write to `mapping`: not those of a class of its own, but of an ordered one."""
    return OrderedDict if isinstance(mapping, OrderedDict) else dict


def fill(mapping: dict[Any, Any], saved: Mapping[Any, Any]) -> None:
    """Let `mapping` contain what is in `saved`, in its order."""
    kind = _kind(mapping)
    kind.clear(mapping)
    for key, value in saved.items():
        kind.__setitem__(mapping, key, value)


def attribute(path: str, owner: Any, name: str) -> ValuePlace:
    """The attribute `name` of `owner`."""

    def write(value: Any) -> None:
        setattr(owner, name, value)

    def read() -> Any:
        return getattr(owner, name, GONE)

    return ValuePlace(path, read, write, same, read())


def cell_place(path: str, cell: types.CellType) -> ValuePlace:
    """What a variable of a closure holds."""

    def write(value: Any) -> None:
        if value is not GONE:
            cell.cell_contents = value

    return ValuePlace(path, lambda: held_by(cell), write, same, held_by(cell))


def context_place(path: str, variable: ContextVar[Any]) -> ValuePlace:
    """What a context variable gives in this context; `GONE` where it has no value."""

    def write(value: Any) -> None:
        if value is not GONE:
            variable.set(value)

    return ValuePlace(path, lambda: variable.get(GONE), write, same, variable.get(GONE))


def held_by(cell: types.CellType) -> Any:
    """What `cell` holds; `GONE` before it is filled."""
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return GONE


def equal_through(one: Any, two: Any) -> bool:
    """Equality through dictionaries and tuples with arrays in them."""
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(equal_through(one[key], two[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(two) and all(map(equal_through, one, two))
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, two))
    return bool(one == two)
