"""Checks of arguments against the annotations of the called function.

An argument of a wrong type is refused at the call. Deep inside, it would end as a ``KeyError`` or a
missing attribute, which says nothing about the argument. `checked` decorates a function that people
call by hand; `check_arguments` serves a function that was found by its name.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, wraps
from numbers import Real
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from ..errors import SchedsimError
from .value_checks import shown

Given = ParamSpec("Given")
Answer = TypeVar("Answer")

_READ_BY_THEMSELVES = ("WorkloadLike", "PlannerLike", "PlannerLike | None", "Schedule | Plan")
"""Annotations, besides a parameter ``budget_bytes``, that a function checks by itself."""

_SEQUENCES = (Sequence, Collection, Iterable)
_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a text",
    None: "None",
    types.NoneType: "None",
}


def checked(function: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """Make `function` refuse arguments that are not of the types of its annotations.

    Raises
    ------
    SchedsimError
        Raised by the decorated function; names the argument, its value, and what it may be.
    """
    names = [name for name, _ in _parameters(function)]

    @wraps(function)
    def called(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        check_arguments(function, {**dict(zip(names, args, strict=False)), **kwargs})
        return function(*args, **kwargs)

    return called


def check_arguments(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Refuse values of `given` that do not fit the annotations of the parameters of `function`.

    Names without a parameter or an annotation are left to the function. So are arguments that the
    function checks itself, with better messages.

    Raises
    ------
    SchedsimError
        Names the argument, its value, and what it may be.
    """
    hints = hints_of(function)
    for name, value in given.items():
        if name in hints and not _fits(value, hints[name]):
            raise SchedsimError(
                f"{name} {shown(value)} is not {_in_words(hints[name])}",
                hint=f"see help({_name(function)})",
            )


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


@cache
def hints_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Parameter -> type, for parameters whose annotation can be evaluated here."""
    function = inspect.unwrap(function)
    found = {}
    names = getattr(function, "__globals__", {})
    for name, parameter in _parameters(function):
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        hint = parameter.annotation
        if hint in _READ_BY_THEMSELVES or name == "budget_bytes":
            continue
        if isinstance(hint, str):
            try:
                # evaluates annotations of schedsim, never a user's text
                hint = eval(hint, names, _Names(names))
            except (NameError, AttributeError, TypeError):
                continue  # a name that only type checkers import
        if hint is not parameter.empty:
            found[name] = hint
    return found


def _parameters(function: Callable[..., Any]) -> Iterable[tuple[str, inspect.Parameter]]:
    try:
        return inspect.signature(function).parameters.items()
    except (TypeError, ValueError):  # a builtin without a signature
        return ()


class _ByName:
    """Stand-in for a class that a module imports for type checkers alone."""


class _Names(dict[str, Any]):
    """The names of a module, and stand-ins for classes that it does not hold at run time."""

    classes = ("Chain", "Graph", "Plan", "Simulation", "Schedule", "Stage", "Op")

    def __missing__(self, name: str) -> Any:
        if name in self.classes:
            return type(name, (_ByName,), {})
        raise KeyError(name)


def _fits(value: Any, hint: Any) -> bool:
    """Whether `value` is of the type `hint`, as far as this shows without consuming an iterator."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if hint is None or hint is types.NoneType:
        return value is None
    if hint is bool:
        return isinstance(value, bool) or type(value).__name__ == "bool"  # numpy's too
    if hint is int:
        return hasattr(type(value), "__index__") and not _fits(value, bool)
    if hint is float:
        return isinstance(value, Real) and not isinstance(value, bool)
    kind = origin or hint
    if not isinstance(kind, type) or kind in (object, Any):
        return True  # cannot be checked: a type variable, Any
    if kind is str:
        return isinstance(value, str)
    if getattr(kind, "_is_protocol", False) and kind.__module__ != "collections.abc":
        return True
    if issubclass(kind, _ByName):
        return any(base.__name__ == kind.__name__ for base in type(value).__mro__)
    if not isinstance(value, kind) and not (kind in _SEQUENCES and _is_array(value)):
        return False
    if kind in (tuple, list, *_SEQUENCES) and parts and isinstance(value, list | tuple):
        return all(_fits(one, part) for one, part in _items(value, kind, parts))
    if issubclass(kind, Mapping) and parts:
        return all(_fits(k, parts[0]) and _fits(v, parts[1]) for k, v in value.items())
    # A text is not a sequence of its letters, unless the function splits the text itself.
    return not (kind in _SEQUENCES and isinstance(value, str | bytes)) or parts == (str,)


def _is_array(value: Any) -> bool:
    return hasattr(type(value), "__array__") and getattr(value, "ndim", 0) > 0


def _items(value: Any, kind: type, parts: tuple[Any, ...]) -> Iterable[tuple[Any, Any]]:
    if kind is tuple and parts[-1:] != (Ellipsis,):
        return zip(value, parts, strict=False) if len(value) == len(parts) else [(None, int)]
    return ((one, parts[0]) for one in value)


def _in_words(hint: Any) -> str:
    """The values that an argument may have, as a phrase after "is not"."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        words = list(dict.fromkeys(_in_words(part) for part in parts))
        return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
    if origin is Literal:
        return " or ".join(repr(part) for part in parts)
    if hint in _WORDS:
        return _WORDS[hint]
    kind = origin or hint
    if kind in _SEQUENCES or kind in (tuple, list):
        return "a list"
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return "a dict"
    if kind is Callable or getattr(kind, "__name__", "") == "Callable":
        return "a function"
    name = getattr(kind, "__name__", str(kind))
    return f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}"
