"""Strict reading of JSON documents: every fault is named by the path of its field."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from ._checks import check_bytes, check_seconds, shown
from .errors import InvalidWorkloadError

_REQUIRED: Any = object()
_TYPE_NAMES = {str: "text", bool: "true or false", int: "an integer", dict: "an object"}

Choice = TypeVar("Choice", bound=str)


def parse_json(data: bytes) -> Any:
    """The document in `data`; refuses NaN, repeated keys, truncation and deep nesting."""
    try:
        text = data.decode("utf-8-sig")
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_repeats)
    except UnicodeDecodeError as error:
        raise InvalidWorkloadError(f"byte {error.start} is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise InvalidWorkloadError(
            f"not JSON: {error.msg} at line {error.lineno} column {error.colno}",
            hint="is the file complete?",
        ) from None
    except RecursionError:
        raise InvalidWorkloadError("not one of our files: nested too deeply") from None
    except InvalidWorkloadError:
        raise
    except ValueError as error:  # an integer of thousands of digits
        raise InvalidWorkloadError(f"not JSON that can be read: {error}") from None


def _no_constant(name: str) -> Any:
    raise InvalidWorkloadError(f"not JSON: {name} is not a number that JSON knows")


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise InvalidWorkloadError(f"the key {shown(key)} stands twice in one object")
            seen.add(key)
    return table


class Reader:
    """One JSON object whose fields are taken one by one; what is left over is an error.

    Parameters
    ----------
    value
        Must be a JSON object.
    path
        Its place in the document; empty for the whole.
    """

    def __init__(self, value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise InvalidWorkloadError(f"{shown(value)} is not an object", path=path)
        self._fields = dict(value)
        self._known: list[str] = []
        self._path = path

    def _at(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def _pop(self, name: str, default: Any) -> Any:
        self._known.append(name)
        value = self._fields.pop(name, default)
        if value is _REQUIRED:
            near = difflib.get_close_matches(name, self._fields, n=1)
            raise InvalidWorkloadError(
                "missing field",
                path=self._at(name),
                hint=f"is {near[0]!r} a slip for it?" if near else "",
            )
        return value

    def skip(self, name: str) -> None:
        """Allow the field `name`, whatever it holds."""
        self._pop(name, None)

    def take(self, name: str, kind: type, default: Any = _REQUIRED) -> Any:
        """The field `name`, which must be of type `kind` (or equal the default)."""
        value = self._pop(name, default)
        if default is not _REQUIRED and (value is default or (value is None and default is None)):
            return value
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise InvalidWorkloadError(
                f"{shown(value)} is not {_TYPE_NAMES[kind]}", path=self._at(name)
            )
        return value

    def take_choice(self, name: str, choices: Sequence[Choice]) -> Choice:
        """The field `name`, which must be one of `choices`."""
        value = self.take(name, str)
        for choice in choices:
            if value == choice:
                return choice
        raise InvalidWorkloadError(
            f"{shown(value)} is unknown",
            path=self._at(name),
            hint=f"one of {', '.join(choices)}",
        )

    def take_bytes(self, name: str, default: Any = _REQUIRED) -> int:
        """The field `name` as a whole number of bytes."""
        value = self._pop(name, default)
        check_bytes(value, self._at(name))
        return int(value)

    def take_optional_bytes(self, name: str, default: Any = _REQUIRED) -> int | None:
        """The field `name` as a whole number of bytes, or null."""
        value = self._pop(name, default)
        if value is None:
            return None
        check_bytes(value, self._at(name))
        return int(value)

    def take_seconds(self, name: str, default: Any = _REQUIRED) -> float:
        """The field `name` as a finite number, zero or more."""
        value = self._pop(name, default)
        check_seconds(value, self._at(name))
        return float(value)

    def take_optional_seconds(self, name: str) -> float | None:
        """The field `name` as a finite number, zero or more, or null."""
        value = self._pop(name, _REQUIRED)
        if value is None:
            return None
        check_seconds(value, self._at(name))
        return float(value)

    def take_object(self, name: str) -> Reader:
        """The field `name` as a reader of its own."""
        return Reader(self._pop(name, _REQUIRED), self._at(name))

    def take_objects(self, name: str) -> Iterator[Reader]:
        """The field `name`, a list of objects, as readers of their own."""
        for i, value in enumerate(self._take_list(name, _REQUIRED)):
            yield Reader(value, f"{self._at(name)}[{i}]")

    def take_names(self, name: str, default: Any = _REQUIRED) -> Any:
        """The field `name`, a list of texts, as a tuple (or the default)."""
        value = self._take_list(name, default)
        if value is default:
            return default
        for i, item in enumerate(value):
            if not isinstance(item, str):
                raise InvalidWorkloadError(
                    f"{shown(item)} is not text", path=f"{self._at(name)}[{i}]"
                )
        return tuple(value)

    def _take_list(self, name: str, default: Any) -> Any:
        value = self._pop(name, default)
        if value is not default and not isinstance(value, list):
            raise InvalidWorkloadError(f"{shown(value)} is not a list", path=self._at(name))
        return value

    def take_sizes(self, name: str, default: Any = _REQUIRED) -> dict[str, int]:
        """The field `name`, an object of byte sizes."""
        table = self._pop(name, default)
        if not isinstance(table, dict):
            raise InvalidWorkloadError(f"{shown(table)} is not an object", path=self._at(name))
        for key, value in table.items():
            check_bytes(value, f"{self._at(name)}.{key}")
        return dict(table)

    def take_texts(self, name: str, default: Any = _REQUIRED) -> dict[str, str]:
        """The field `name`, an object of texts."""
        table = self._pop(name, default)
        if not isinstance(table, dict):
            raise InvalidWorkloadError(f"{shown(table)} is not an object", path=self._at(name))
        for key, value in table.items():
            if not isinstance(value, str):
                raise InvalidWorkloadError(
                    f"{shown(value)} is not text", path=f"{self._at(name)}.{key}"
                )
        return dict(table)

    def finish(self) -> None:
        """Raise where the object has fields that nobody took."""
        for name in self._fields:
            near = difflib.get_close_matches(name, self._known, n=1)
            raise InvalidWorkloadError(
                "unknown field",
                path=self._at(name),
                hint=f"did you mean {near[0]!r}?" if near else f"known: {', '.join(self._known)}",
            )
