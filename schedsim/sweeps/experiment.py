"""The experiment file: TOML that names workloads, budgets, planners and seeds."""

from __future__ import annotations

import difflib
import itertools
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..api import get_planner
from ..checks.value_checks import shown
from ..errors import SchedsimError
from ..plans.budgets import check_budget
from ..units import UnitError, parse_bytes
from ..workloads.given import is_target
from ..workloads.named import PREFIX, is_named

if TYPE_CHECKING:
    from .cluster_runs import ClusterRun

DEFAULT_MAX_MOVES = 50_000
DEFAULT_EFFORT = 30.0
DEFAULT_TIME_LIMIT_S = 120.0

_FIELDS = (
    "name",
    "clusters",
    "workloads",
    "budgets",
    "planners",
    "seeds",
    "max_moves",
    "effort",
    "time_limit_s",
    "keep",
    "recompute",
)
RULES = ("keep", "recompute")
"""Fields with patterns that every planner must follow, as in `schedsim.plan`."""
# Planner options with a type that TOML can hold; other options are for Python alone.
_PLAIN = (str, int, float, bool)


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """One workload of an experiment, as written in the file.

    Attributes
    ----------
    label
        The name in the results: as given, or the options on one line.
    target
        A file, or a model; ``None`` if `options` describe a formula.
    options
        Field of `schedsim.workloads.WorkloadOptions` -> value, as on the command line.
    level
        For a model: ``block`` or ``op``.
    """

    label: str
    target: str | None
    options: Mapping[str, Any]
    level: str | None = None


@dataclass(frozen=True, slots=True)
class PlannerSpec:
    """A planner and its options."""

    name: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Experiment:
    """The content of an experiment file, with nothing built yet.

    Attributes
    ----------
    budgets
        Sizes (``"8GB"``) or shares of the store-all peak (``"50%"``), as written.
    planners
        Planners to run; empty for all that take the workload.
    seeds
        Seeds for planners that make random choices.
    max_moves, effort
        Limits of an annealing, and of any other search, which end it at the same place every time.
    time_limit_s
        Watchdog in seconds per run, for planners that take one. A run that it ends says so.
    keep, recompute
        Patterns that every run follows, as in `schedsim.plan`.
    clusters
        Settings of clusters, instead of everything else.
    """

    path: str
    workloads: tuple[WorkloadSpec, ...]
    budgets: tuple[str, ...]
    planners: tuple[PlannerSpec, ...]
    seeds: tuple[int, ...] = (0,)
    max_moves: int = DEFAULT_MAX_MOVES
    effort: float = DEFAULT_EFFORT
    time_limit_s: float = DEFAULT_TIME_LIMIT_S
    keep: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    clusters: tuple[ClusterRun, ...] = ()


def read_experiment(path: str | os.PathLike[str]) -> Experiment:
    """The experiment in the TOML file at `path`.

    Raises
    ------
    SchedsimError
        The file is not TOML, lacks a field, has an unknown one, or a value is out of its range;
        the message names the file and the field.
    OSError
        The file cannot be read.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "e.toml")
    ...     _ = file.write_text('workloads = ["gpt2", {layers = [2, 4]}]\\nbudgets = ["50%"]')
    ...     experiment = read_experiment(file)
    >>> [spec.label for spec in experiment.workloads], experiment.planners[0].name
    (['gpt2', 'layers=2', 'layers=4'], 'auto')
    """
    file = Path(path)
    data = file.read_bytes()
    try:
        document = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SchedsimError(
            f"{file}: not TOML: {' '.join(str(error).split())}",
            hint='an experiment begins like workloads = ["gpt2"]',
        ) from None
    try:
        return _read(document, file)
    except SchedsimError as error:
        raise SchedsimError(f"{file}: {error.message}", hint=error.hint) from None


def _read(document: dict[str, Any], file: Path) -> Experiment:
    for field in document:
        if field not in _FIELDS:
            near = difflib.get_close_matches(field, _FIELDS, n=1)
            raise SchedsimError(
                f"{field}: unknown field",
                hint=f"did you mean {near[0]}?" if near else f"one of {', '.join(_FIELDS)}",
            )
    if "clusters" in document:
        return _of_clusters(document, file)
    workloads: list[WorkloadSpec] = []
    for number, item in enumerate(_items(document, "workloads")):
        workloads += _workloads(item, f"workloads[{number}]", file.parent)
    budgets = []
    for number, item in enumerate(_items(document, "budgets")):
        where = f"budgets[{number}]"
        text = str(item) if isinstance(item, int) and not isinstance(item, bool) else item
        if not isinstance(text, str):
            raise SchedsimError(f"{where}: {shown(item)} is not a size", hint='"8GB", or "50%"')
        try:
            check_budget(text)
        except UnitError as error:
            raise SchedsimError(f"{where}: {error.message}", hint=error.hint) from None
        budgets.append(text)
    planners = [
        _planner(item, f"planners[{number}]")
        for number, item in enumerate(_items(document, "planners", [get_planner().name]))
    ]
    seeds = _items(document, "seeds", [0])
    for number, seed in enumerate(seeds):
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise SchedsimError(
                f"seeds[{number}]: {shown(seed)} is not a seed", hint="0, 1, 2, ..."
            )
    max_moves = document.get("max_moves", DEFAULT_MAX_MOVES)
    if isinstance(max_moves, bool) or not isinstance(max_moves, int) or max_moves < 0:
        raise SchedsimError(f"max_moves: {shown(max_moves)} is not a number of moves")
    effort = document.get("effort", DEFAULT_EFFORT)
    if isinstance(effort, bool) or not isinstance(effort, int | float) or not 0 < effort < 1e9:
        raise SchedsimError(f"effort: {shown(effort)} is not an amount of work above 0")
    limit_s = document.get("time_limit_s", DEFAULT_TIME_LIMIT_S)
    if isinstance(limit_s, bool) or not isinstance(limit_s, int | float) or not 0 < limit_s < 1e9:
        raise SchedsimError(f"time_limit_s: {shown(limit_s)} is not a number of seconds above 0")
    rules = {}
    for rule in RULES:
        patterns = document.get(rule, [])
        patterns = [patterns] if isinstance(patterns, str) else patterns
        if not isinstance(patterns, list) or not all(isinstance(one, str) for one in patterns):
            raise SchedsimError(
                f"{rule}: {shown(patterns)} is no list of patterns", hint='["layer0", "*.router"]'
            )
        rules[rule] = tuple(patterns)
    return Experiment(
        path=str(file),
        workloads=tuple(_labelled(workloads)),
        budgets=tuple(dict.fromkeys(budgets)),
        planners=() if planners == [PlannerSpec("all", {})] else tuple(planners),
        seeds=tuple(dict.fromkeys(seeds)),
        max_moves=max_moves,
        effort=float(effort),
        time_limit_s=float(limit_s),
        **rules,
    )


def _of_clusters(document: dict[str, Any], file: Path) -> Experiment:
    """An experiment over clusters, which have no workloads, planners or seeds."""
    from .cluster_runs import read_clusters

    for field in document:
        if field not in ("name", "clusters"):
            raise SchedsimError(
                f"{field}: does not go with clusters", hint="write it into a file of its own"
            )
    runs = read_clusters(_items(document, "clusters"), "clusters")
    return Experiment(str(file), (), (), (), clusters=runs)


def _items(document: dict[str, Any], field: str, default: list[Any] | None = None) -> list[Any]:
    value = document.get(field, default)
    if value is None:
        raise SchedsimError(f"{field}: missing", hint=f'add {field} = ["{_EXAMPLES[field]}"]')
    if not isinstance(value, list) or not value:
        raise SchedsimError(
            f"{field}: {shown(value)} is not a list with at least one entry",
            hint=f"as in {field.rpartition(': ')[2]} = [...]",
        )
    return value


_EXAMPLES = {
    "clusters": "...",
    "workloads": "gpt2",
    "budgets": "50%",
    "planners": "all",
    "seeds": "0",
}


def _planner(item: Any, where: str) -> PlannerSpec:
    table = {"name": item} if isinstance(item, str) else item
    if not isinstance(table, dict) or not isinstance(table.get("name"), str):
        raise SchedsimError(
            f"{where}: {shown(item)} names no planner",
            hint='"rotor", or {name = "rotor", num_slots = 500}',
        )
    options = {field: value for field, value in table.items() if field != "name"}
    for field, value in options.items():
        values = value if isinstance(value, list) else [value]  # allow = ["quantize"]
        if not all(isinstance(one, _PLAIN) for one in values):
            raise SchedsimError(f"{where}.{field}: {shown(value)} is no plain value")
    return PlannerSpec(table["name"], options)


def _workloads(item: Any, where: str, folder: Path) -> list[WorkloadSpec]:
    """The workloads of one item; a list within the item gives a workload for each value."""
    if isinstance(item, str):
        if _is_file(item):
            return [WorkloadSpec(item, _located(item, folder), {})]
        return [WorkloadSpec(item, None, {"preset": item})]
    if not isinstance(item, dict) or not item:
        raise SchedsimError(
            f"{where}: {shown(item)} is no workload",
            hint='"gpt2", "chain.json", "my_model.py:build", or {preset = "gpt2", batch = 8}',
        )
    table = {field.replace("-", "_"): value for field, value in item.items()}
    name, level, target = (table.pop(field, None) for field in ("name", "level", "target"))
    known = _option_fields()
    for field in table:
        if field not in known:
            near = difflib.get_close_matches(field, known, n=1)
            raise SchedsimError(
                f"{where}.{field}: unknown field",
                hint=f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}",
            )
    for field, value in (("name", name), ("level", level), ("target", target)):
        if value is not None and not isinstance(value, str):
            raise SchedsimError(f"{where}.{field}: {shown(value)} is not a text")
    choices = [value if isinstance(value, list) else [value] for value in table.values()]
    found = []
    for values in itertools.product(*choices):
        options = {}
        for field, value in zip(table, values, strict=True):
            options[known[field]] = _option(field, value, f"{where}.{field}", folder)
        many = {f: v for f, v, c in zip(table, values, choices, strict=True) if len(c) > 1}
        shown_options = dict(zip(table, values, strict=True)) if name is None else many
        words = [name or target or "", *(f"{f}={v}" for f, v in shown_options.items())]
        label = ", ".join(word for word in words if word)
        label += f", level={level}" if level and name is None else ""
        where_to = _located(target, folder) if target else None
        found.append(WorkloadSpec(label, where_to, options, level))
    return found


def _option(field: str, value: Any, where: str, folder: Path) -> Any:
    if not isinstance(value, _PLAIN):
        raise SchedsimError(f"{where}: {shown(value)} is no plain value")
    from ..workloads import WorkloadOptions
    from ..workloads.devices import is_device_file

    kind = str(WorkloadOptions.__dataclass_fields__[_option_fields()[field]].type)
    right: tuple[type, ...] = (str,)
    if "bool" in kind:
        right = (bool,)
    elif "float" in kind:
        right = (int, float)
    elif "int" in kind:
        right = (int, str) if "str" in kind else (int,)
    if not isinstance(value, right) or (isinstance(value, bool) and bool not in right):
        raise SchedsimError(f"{where}: {shown(value)} is not of type {right[-1].__name__}")
    if field == "static" and isinstance(value, str) and value != "auto":
        return parse_bytes(value)
    is_file = field == "times" or (field == "device" and is_device_file(str(value)))
    return _located(str(value), folder) if is_file else value


def _option_fields() -> dict[str, str]:
    """Name in the file, that of the command-line option -> field of `WorkloadOptions`."""
    from ..workloads import WorkloadOptions

    short = {"zero_stage": "zero", "times_path": "times"}
    fields = [field for field in WorkloadOptions.__dataclass_fields__ if field != "allow"]
    return {short.get(field, field): field for field in fields}


def _is_file(text: str) -> bool:
    head = text.partition(",")[0]
    return head.endswith((".json", ".json.gz")) or is_target(text) or is_named(text)


def _located(text: str, folder: Path) -> str:
    """The path `text`, relative to the folder of the experiment file."""
    if text.startswith(("model:", "hf:", PREFIX)) or Path(text).is_absolute():
        return text
    return str(folder / text)


def _labelled(specs: list[WorkloadSpec]) -> list[WorkloadSpec]:
    labels = [spec.label for spec in specs]
    for label in labels:
        if labels.count(label) > 1:
            raise SchedsimError(
                f"workloads: two are called {label!r}", hint="give each a name of its own"
            )
    return specs
