"""Results as a table: a line per workload and budget, a column per planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..plans.scope import Scope, common

# Limits of searches, usually the same in the whole experiment, do not name a planner.
_LIMITS = ("time_limit_s", "max_moves", "num_threads")


@dataclass(frozen=True, slots=True)
class Cell:
    """The results of one planner on one workload within one budget, over all seeds.

    Attributes
    ----------
    overheads
        Overheads of the seeds that found a schedule, ascending.
    optimal
        Whether all seeds found a proven optimum.
    min_feasible_bytes
        If nothing fits, the least budget that any seed found.
    error
        The error of the first seed that failed; empty if none did.
    """

    overheads: tuple[float, ...]
    num_rows: int
    optimal: bool
    min_feasible_bytes: int | None
    error: str


@dataclass(frozen=True, slots=True)
class Line:
    """A workload within a budget: its cells by the planner's label."""

    workload: str
    budget: str
    budget_bytes: int
    store_all_bytes: int
    cells: Mapping[str, Cell]
    lower_bound: float
    """The best proven bound over `bound_scope`, as an overhead; 0 without a bound."""
    bound_scope: str


def planner_labels(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Key of a row -> planner name, with the options in which runs of this planner differ.

    Examples
    --------
    >>> rows = [{"key": "a", "planner": "dtr", "options": {"heuristic": "lru"}},
    ...         {"key": "b", "planner": "dtr", "options": {}}]
    >>> planner_labels(rows)
    {'a': 'dtr heuristic=lru', 'b': 'dtr'}
    """
    variants: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        options = dict(row["options"])
        if options not in variants.setdefault(row["planner"], []):
            variants[row["planner"]].append(options)
    labels = {}
    for row in rows:
        others = variants[row["planner"]]
        telling = [
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in row["options"].items()
            if any(other.get(name) != value for other in others)
            # A limit that applies only to chains or only to graphs does not make a different
            # planner.
            and (name not in _LIMITS or any(name in o and o[name] != value for o in others))
        ]
        labels[row["key"]] = " ".join([row["planner"], *telling])
    return labels


def lines_of(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[Line]]:
    """The planners' labels in order of appearance, and the lines by workload, then by budget."""
    labels = planner_labels(rows)
    groups: dict[tuple[str, str, int], dict[str, list[Mapping[str, Any]]]] = {}
    for row in rows:
        place = (row["workload"], row["content_hash"], row["budget_bytes"])
        groups.setdefault(place, {}).setdefault(labels[row["key"]], []).append(row)
    order = {place[:2]: number for number, place in reversed(list(enumerate(groups)))}
    lines = []
    for place in sorted(groups, key=lambda place: (order[place[:2]], place[2])):
        cells = groups[place]
        first = next(iter(cells.values()))[0]
        bound, scope = _bound([row for found in cells.values() for row in found])
        lines.append(
            Line(
                workload=place[0],
                budget=first["budget"],
                budget_bytes=place[2],
                store_all_bytes=first["store_all_bytes"],
                cells={label: _cell(found) for label, found in cells.items()},
                lower_bound=bound,
                bound_scope=scope,
            )
        )
    return list(dict.fromkeys(labels.values())), lines


def _cell(rows: Sequence[Mapping[str, Any]]) -> Cell:
    least = [row["min_feasible_bytes"] for row in rows if row.get("min_feasible_bytes") is not None]
    errors = [row["error"]["message"] for row in rows if row["status"] == "error"]
    return Cell(
        overheads=tuple(sorted(r["overhead"] for r in rows if r.get("overhead") is not None)),
        num_rows=len(rows),
        optimal=all(row["status"] == "optimal" for row in rows),
        min_feasible_bytes=min(least, default=None),
        error=errors[0] if errors else "",
    )


def _bound(rows: Sequence[Mapping[str, Any]]) -> tuple[float, str]:
    """The best bound over the narrowest scope among the rows, or over any schedule."""
    known = [row for row in rows if row.get("overhead") is not None and row["store_all_s"]]
    scopes = [Scope.parse(row["bound_scope"]) for row in known]
    scope = common(scopes)
    # A bound over a wider class of schedules holds over a narrower class, too.
    bounds = (
        row["lower_bound_s"] / row["store_all_s"] - 1
        for row, wider in zip(known, scopes, strict=True)
        if scope <= wider
    )
    return max(bounds, default=0.0), str(scope)
