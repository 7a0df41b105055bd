"""Strict reading of JSON documents: every error names the path of the field."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from ..checks.value_checks import MAX_SECONDS, check_bytes, check_seconds, shown, shown_key
from ..errors import InvalidWorkloadError, SchedsimError, did_you_mean

_REQUIRED: Any = object()
_TYPE_NAMES = {
    str: "text",
    bool: "true or false",
    int: "an integer",
    dict: "an object",
    list: "a list",
}

# Limit for the time of a whole schedule: far above any sum of `MAX_SECONDS`, far below the largest
# float.
MAX_TOTAL_SECONDS = 1e100 * MAX_SECONDS

# An option of a planner is a value, a list of them or a table of such lists.
_MAX_SETTING_DEPTH = 4

Choice = TypeVar("Choice", bound=str)
Made = TypeVar("Made")


def parse_json(data: bytes) -> Any:
    """The document in `data`; refuses repeated keys, truncation and deep nesting.

    NaN, Infinity and numbers that round to infinity become objects of a type that no field takes,
    so that the error names their field.
    """
    try:
        text = data.decode("utf-8-sig")
        return json.loads(
            text,
            parse_constant=_NotFinite,
            parse_float=_finite_float,
            object_pairs_hook=_no_repeats,
        )
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


class _NotFinite:
    """A number in a document that is not finite; printed as it was written."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _finite_float(text: str) -> Any:
    value = float(text)
    return value if math.isfinite(value) else _NotFinite(text)


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise InvalidWorkloadError(f"the key {shown(key)} stands twice in one object")
            seen.add(key)
    return table


def _check_plain(value: Any, path: str, depth: int) -> None:
    if depth > _MAX_SETTING_DEPTH:
        raise InvalidWorkloadError("nested too deeply", path=path)
    if isinstance(value, dict):
        for key, item in value.items():
            _check_plain(item, f"{path}.{shown_key(key)}", depth + 1)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _check_plain(item, f"{path}[{i}]", depth + 1)
    elif not (value is None or isinstance(value, str | int | float)):
        raise InvalidWorkloadError(f"{shown(value)} is not a JSON value", path=path)
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidWorkloadError(f"{value} is not a finite number", path=path)


class Reader:
    """One JSON object whose fields are taken one by one; a field left over is an error.

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
        return f"{self._path}.{shown_key(name)}" if self._path else shown_key(name)

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
        """Allow the field `name` with any value."""
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
        if isinstance(value, str) and not value.isprintable():
            raise InvalidWorkloadError(
                f"{shown(value)} has control characters",
                path=self._at(name),
                hint="names are one line of text",
            )
        return value

    def take_settings(self, name: str) -> dict[str, Any]:
        """The field `name`, an object of plain JSON values, nested a few levels at most."""
        table: dict[str, Any] = self.take(name, dict)
        _check_plain(table, self._at(name), 0)
        return table

    def take_choice(self, name: str, choices: Sequence[Choice], default: Any = _REQUIRED) -> Choice:
        """The field `name`, which must be one of `choices`."""
        value = self.take(name, str, default)
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

    def take_bytes_list(self, name: str, default: Any = _REQUIRED) -> list[int]:
        """The field `name`, a list of whole numbers of bytes."""
        found = self._take_list(name, default)
        for i, size in enumerate(found):
            check_bytes(size, f"{self._at(name)}[{i}]")
        return list(found)

    def take_optional_bytes(self, name: str, default: Any = _REQUIRED) -> int | None:
        """The field `name` as a whole number of bytes, or null."""
        value = self._pop(name, default)
        if value is None:
            return None
        check_bytes(value, self._at(name))
        return int(value)

    def take_count(self, name: str, default: Any = _REQUIRED, *, least: int = 0) -> int:
        """The field `name` as a whole number of `least` or more."""
        value = int(self.take(name, int, default))
        if value < least:
            raise InvalidWorkloadError(
                f"{shown(value)} is not at least {least}", path=self._at(name)
            )
        return value

    def take_optional_count(self, name: str) -> int | None:
        """The field `name` as a whole number, zero or more; null, or no field, is ``None``."""
        if self._fields.get(name) is not None:
            return self.take_count(name)
        self.skip(name)
        return None

    def take_seconds(self, name: str, default: Any = _REQUIRED) -> float:
        """The field `name` as a finite number, zero or more."""
        value = self._pop(name, default)
        check_seconds(value, self._at(name))
        return float(value)

    def take_number(self, name: str) -> float:
        """The field `name` as a finite number of any unit."""
        value = self._pop(name, _REQUIRED)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidWorkloadError(f"{shown(value)} is not a number", path=self._at(name))
        try:
            number = float(value)
        except OverflowError:
            raise InvalidWorkloadError(
                f"{shown(value)} is too large a number", path=self._at(name)
            ) from None
        if not math.isfinite(number):
            raise InvalidWorkloadError(f"{number} is not a finite number", path=self._at(name))
        return number

    def take_total_seconds(self, name: str) -> float:
        """The field `name` as a time of many runs: finite, zero or more."""
        value = self._pop(name, _REQUIRED)
        check_seconds(value, self._at(name), most=MAX_TOTAL_SECONDS)
        return float(value)

    def take_optional_total_seconds(self, name: str) -> float | None:
        """The field `name` as a time of many runs, or null."""
        value = self._pop(name, _REQUIRED)
        if value is None:
            return None
        check_seconds(value, self._at(name), most=MAX_TOTAL_SECONDS)
        return float(value)

    def take_optional_ratio(self, name: str) -> float | None:
        """The field `name` as a finite number without unit, zero or more, or null."""
        value = self._pop(name, _REQUIRED)
        if value is None:
            return None
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value <= MAX_TOTAL_SECONDS:
            raise InvalidWorkloadError(
                f"{shown(value)} is not a finite number, zero or more", path=self._at(name)
            )
        return float(value)

    def take_object(self, name: str, default: Any = _REQUIRED) -> Reader:
        """The field `name` as a reader of its own."""
        return Reader(self._pop(name, default), self._at(name))

    def take_part(self, name: str, read: Callable[[Reader], Made]) -> Made | None:
        """The result of `read` on the object in the field `name`; ``None`` without the field."""
        return read(self.take_object(name)) if name in self._fields else None

    def make(self, kind: Callable[..., Made], *values: Any) -> Made:
        """``kind(*values)``; an error of `kind` gets the path of this object."""
        try:
            return kind(*values)
        except InvalidWorkloadError as error:
            path = self._at(error.path) if error.path else self._path
            raise InvalidWorkloadError(error.reason, path=path, hint=error.hint) from None
        except SchedsimError as error:
            raise InvalidWorkloadError(error.message, path=self._path, hint=error.hint) from None

    def names(self) -> tuple[str, ...]:
        """The fields that were not taken yet."""
        return tuple(self._fields)

    def take_objects(
        self, name: str, default: Any = _REQUIRED, *, most: int | None = None
    ) -> Iterator[Reader]:
        """The field `name`, a list of at most `most` objects, as readers of their own."""
        values = self._take_list(name, default)
        if most is not None and len(values) > most:
            raise InvalidWorkloadError(
                f"{len(values):,} {name} are more than {most:,}",
                path=self._at(name),
                hint="join those that always run together into one",
            )
        for i, value in enumerate(values):
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
            if not item.isprintable():
                raise InvalidWorkloadError(
                    f"{shown(item)} has control characters",
                    path=f"{self._at(name)}[{i}]",
                    hint="names are one line of text",
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
            check_bytes(value, f"{self._at(name)}.{shown_key(key)}")
        return dict(table)

    def take_texts(self, name: str, default: Any = _REQUIRED) -> dict[str, str]:
        """The field `name`, an object of texts."""
        table = self._pop(name, default)
        if not isinstance(table, dict):
            raise InvalidWorkloadError(f"{shown(table)} is not an object", path=self._at(name))
        for key, value in table.items():
            if not isinstance(value, str) or not value.isprintable():
                raise InvalidWorkloadError(
                    f"{shown(value)} is not printable text",
                    path=f"{self._at(name)}.{shown_key(key)}",
                )
        return dict(table)

    def finish(self) -> None:
        """Raise if the object has fields that were not taken."""
        for name in self._fields:
            raise InvalidWorkloadError(
                "unknown field",
                path=self._at(name),
                hint=did_you_mean(name, self._known, f"known: {', '.join(self._known)}"),
            )

    def whole(self, made: Made) -> Made:
        """`made`, after checking as `finish` does that every field was taken.

        Wrap it around the call that takes the fields: ``item.whole(Thing(item.take(...)))``.
        """
        self.finish()
        return made
