"""Workloads of other packages, by name: ``workload:NAME,OPTION=VALUE,...``.

An entry point of the group ``schedsim.workloads`` names a function that returns a chain or a graph.
The function's keyword options can be given after commas; the type of an option is the type of its
default.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from ..dataflow.chain import Chain
from ..dataflow.graph import Graph
from ..errors import SchedsimError, did_you_mean
from ..plugins import load_plugin, plugin_names

GROUP = "schedsim.workloads"
PREFIX = "workload:"


def is_named(text: str) -> bool:
    """Whether `text` names a workload of another package."""
    return text.startswith(PREFIX)


def workload_names() -> list[str]:
    """The names that can follow ``workload:``; imports nothing."""
    return plugin_names(GROUP)


def named_workload(text: str) -> Chain | Graph:
    """The workload that ``workload:NAME,OPTION=VALUE,...`` names.

    Raises
    ------
    SchedsimError
        No package provides this name, or its function does not take an option, fails, or returns no
        workload.
    """
    name, *given = text.removeprefix(PREFIX).split(",")
    known = workload_names()
    if name not in known:
        able = f"one of {', '.join(known)}" if known else "no installed package brings any"
        raise SchedsimError(f"unknown workload {name!r}", hint=did_you_mean(name, known, able))
    builder: Callable[..., Any] = load_plugin(GROUP, name, _read)
    options = _options(name, builder, given)
    try:
        found = builder(**options)
    except SchedsimError:
        raise
    except Exception as error:  # foreign code may raise anything
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise SchedsimError(
            f"workload {name!r} cannot be made: {what}",
            hint="give it other options, or tell its package",
        ) from error
    if not isinstance(found, Chain | Graph):
        raise SchedsimError(
            f"workload {name!r} gave a {type(found).__name__}",
            hint="it should give a Chain or Graph",
        )
    return found


def _read(name: str, found: Any) -> Any:
    if not callable(found):
        raise SchedsimError(f"{found!r} is no function that gives a workload")
    return found


def _options(name: str, builder: Callable[..., Any], given: list[str]) -> dict[str, Any]:
    parameters = {
        p.name: p
        for p in inspect.signature(builder).parameters.values()
        if p.default is not p.empty
    }
    able = ", ".join(f"{p.name}={p.default}" for p in parameters.values())
    hint = f"it takes {able}" if able else "it takes no options"
    options = {}
    for item in given:
        option, equals, text = item.partition("=")
        if not equals:
            raise SchedsimError(f"workload {name!r}: {item!r} is no OPTION=VALUE", hint=hint)
        if option not in parameters:
            near = difflib.get_close_matches(option, parameters, n=1)
            raise SchedsimError(
                f"workload {name!r} does not take {option}",
                hint=f"did you mean {near[0]}? {hint}" if near else hint,
            )
        options[option] = _value(name, option, text, parameters[option].default)
    return options


def _value(name: str, option: str, text: str, default: Any) -> Any:
    kind = type(default)
    if kind is bool:
        words = {"true": True, "false": False, "1": True, "0": False}
        if text.lower() in words:
            return words[text.lower()]
    elif kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    else:
        return text
    says = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
    raise SchedsimError(
        f"workload {name!r}: {option}={text} is not {says}", hint=f"{option}={default}"
    )
