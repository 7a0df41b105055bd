"""Plugins: planners, exports, workloads and devices that other installed packages add.

A package announces its plugins in its metadata, under the entry-point groups in `GROUPS`. Names are
read from the metadata alone. The package's code is imported when a plugin is asked for by name, or
when all plugins are listed. A package that cannot be imported is left out of a list, with one line
of warning; asked for by name, it is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from .errors import SchedsimError

GROUPS = {
    "schedsim.planners": "planner",
    "schedsim.exports": "export target",
    "schedsim.workloads": "workload",
    "schedsim.devices": "device",
}
"""Entry-point group -> what its names stand for, in words."""

Read = Callable[[str, Any], Any]
"""``(name, object)`` -> what schedsim works with; refuses an object that it cannot use."""

_log = logging.getLogger(__name__)


def plugin_names(group: str, built_in: Collection[str] = ()) -> list[str]:
    """Names that other packages add to `group`, sorted; nothing is imported.

    A name that is in `built_in` is left out with a warning: schedsim's own cannot be replaced.
    """
    names = []
    for name, entry in sorted(_entries(group).items()):
        if name in built_in:
            _warn(group, name, _owner(entry), f"schedsim has a {GROUPS[group]} of this name")
        else:
            names.append(name)
    return names


def load_plugin(group: str, name: str, read: Read) -> Any:
    """The plugin `name` of `group`, passed through `read`.

    Raises
    ------
    SchedsimError
        The package cannot be imported, or the plugin is not of the kind that the group holds.
    """
    entry = _entries(group)[name]
    try:
        return read(name, entry.load())
    except Exception as error:  # foreign code may raise anything
        what = " ".join(f"{type(error).__name__}: {error}".split())
        if isinstance(error, SchedsimError):
            what = error.message
        raise SchedsimError(
            f"{GROUPS[group]} {name!r} of package {_owner(entry)} cannot be loaded: {what}",
            hint=f"update {_owner(entry)}, or uninstall it",
        ) from error


def load_plugins(group: str, read: Read, built_in: Collection[str] = ()) -> dict[str, Any]:
    """All plugins of `group` by name; broken ones are left out with a warning."""
    found = {}
    for name in plugin_names(group, built_in):
        try:
            found[name] = load_plugin(group, name, read)
        except SchedsimError as error:
            _warn_once(f"{error.message}; it is left out")
    return found


@cache
def _entries(group: str) -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        known = found.setdefault(entry.name, entry)
        # A package found twice on the path announces the same thing twice.
        if known.value != entry.value:
            _warn(group, entry.name, _owner(entry), f"package {_owner(known)} has one, too")
    return found


def _owner(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module


def _warn(group: str, name: str, owner: str, why: str) -> None:
    _warn_once(f"{GROUPS[group]} {name!r} of package {owner} is left out: {why}")


@cache
def _warn_once(line: str) -> None:
    # Without a handler, logging writes the bare line to stderr.
    _log.warning("warning: %s", line)


def forget() -> None:
    """Read the metadata of installed packages again, and warn again: for tests."""
    _entries.cache_clear()
    _warn_once.cache_clear()
