"""Rules on which ops must, and which must not, be recomputed: patterns over stages, modules, ops.

A rule becomes part of the workload that is planned: a kept op is marked ``once``, and an op to
recompute lists the outputs that are evicted before the backward begins. So planners, bounds and
brute force solve the same problem, and none of them needs to know the patterns.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ..checks.value_checks import shown
from ..errors import InvalidScheduleError, SchedsimError, UnsupportedError
from .chain import Chain, Stage
from .graph import Graph
from .op import Op
from .run_once import matches

if TYPE_CHECKING:
    from ..simulation.schedule import Schedule

Part = TypeVar("Part", Op, Stage)


@dataclass(frozen=True, slots=True)
class RecomputationRules:
    """Patterns of the ops that must not run again, and of those that must.

    Attributes
    ----------
    keep
        Patterns of names: such an op runs once in every schedule, such a stage keeps its saved
        bundle.
    recompute
        Patterns of names: what such an op writes is not kept from the forward to the backward; such
        a stage keeps only its output. An op named by both fields runs once.

    Examples
    --------
    >>> RecomputationRules.of(keep="*.router")
    RecomputationRules(keep=('*.router',), recompute=())
    >>> bool(RecomputationRules.of())
    False
    """

    keep: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, keep: str | Iterable[str] | None = None, recompute: str | Iterable[str] | None = None
    ) -> RecomputationRules:
        """Rules from one pattern, several, or none per field.

        Raises
        ------
        SchedsimError
            A pattern is empty, or is not a text.
        """
        return cls(_patterns(keep, "keep"), _patterns(recompute, "recompute"))

    def __bool__(self) -> bool:
        return bool(self.keep or self.recompute)

    def __str__(self) -> str:
        words = [f"keep {', '.join(self.keep)}"] if self.keep else []
        return "; ".join(words + [f"recompute {', '.join(self.recompute)}"] * bool(self.recompute))

    def of_workload(self, workload: Chain | Graph) -> Chain | Graph:
        """`workload` with these rules as part of it. O(ops) for each pattern.

        Raises
        ------
        SchedsimError
            A pattern names nothing, or asks to recompute an op that can only run once.

        Examples
        --------
        >>> from schedsim import Op
        >>> graph = Graph("g", (Op("moe.router.mm", writes={"x": 8}), Op("b", reads=("x",))))
        >>> [op.once for op in RecomputationRules(keep=("moe.router",)).of_workload(graph).ops]
        [True, False]
        """
        if not self:
            return workload
        if isinstance(workload, Chain):
            return self._of_chain(workload)
        return self._of_graph(workload)

    def _of_chain(self, chain: Chain) -> Chain:
        kept = self._named(chain.stages, self.keep, "keep", chain.name)
        again = self._named(chain.stages, self.recompute, "recompute", chain.name) - kept
        _check_some(self.recompute, chain.stages, again, chain.name, lambda stage: True)
        stages = [
            replace(stage, rule="keep")
            if i in kept
            else replace(stage, rule="recompute")
            if i in again
            else stage
            for i, stage in enumerate(chain.stages)
        ]
        return replace(chain, stages=tuple(stages))

    def _of_graph(self, graph: Graph) -> Graph:
        kept = self._named(graph.ops, self.keep, "keep", graph.name)
        named = self._named(graph.ops, self.recompute, "recompute", graph.name)
        may = {i for i in named - kept if _may_run_again(graph.ops[i])}
        _check_some(self.recompute, graph.ops, may, graph.name, _may_run_again)
        results = set(graph.results)
        ops = []
        for i, op in enumerate(graph.ops):
            if i in kept:
                op = replace(op, once=True)
            if i in may:
                op = replace(op, evicted=tuple(t for t in op.writes if t not in results))
            ops.append(op)
        return replace(graph, ops=tuple(ops))

    def _named(
        self, parts: Sequence[Op] | Sequence[Stage], patterns: Iterable[str], field: str, of: str
    ) -> set[int]:
        """Indices of the parts that `patterns` name; each pattern must name at least one."""
        found: set[int] = set()
        for pattern in patterns:
            own = {i for i in range(len(parts)) if _names(parts[i], i, pattern)}
            if not own:
                raise _names_nothing(pattern, [part.name for part in parts], field, of)
            found |= own
        return found


NO_RULES = RecomputationRules()
"""No rules: the planner decides what is kept and what is recomputed."""


def _patterns(given: str | Iterable[str] | None, field: str) -> tuple[str, ...]:
    if given is None:
        return ()
    found = [given] if isinstance(given, str) else list(given)
    for pattern in found:
        if not isinstance(pattern, str) or not pattern.strip():
            raise SchedsimError(
                f"{field}: {shown(pattern)} is no pattern of names",
                hint="a module, an op or a stage, with *: 'layers.*.router'",
            )
    return tuple(dict.fromkeys(pattern.strip() for pattern in found))


def _names(part: Op | Stage, index: int, pattern: str) -> bool:
    """Whether `pattern` names the op, or names the stage by its own name or its forward's name."""
    return matches(part.name, pattern) or (isinstance(part, Stage) and pattern == f"F{index}")


def _may_run_again(op: Op) -> bool:
    return op.phase == "forward" and not op.once and not op.is_copy


def _names_nothing(pattern: str, names: Sequence[str], field: str, of: str) -> SchedsimError:
    """The error for a pattern without a match; near names are sought among modules too."""
    known = dict.fromkeys(names)
    for name in names:
        parts = name.split(".")
        known.update(dict.fromkeys(".".join(parts[:k]) for k in range(1, len(parts))))
    plain = pattern.replace("*", "").strip(".")
    near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.5)
    near = near or difflib.get_close_matches(plain, known, n=3, cutoff=0.3)
    some = list(known)[:3]
    return SchedsimError(
        f"{field}: {shown(pattern)} names nothing of {of}",
        hint=f"did you mean {', '.join(near)}?" if near else f"names are like {', '.join(some)}",
    )


def _check_some(
    patterns: Iterable[str],
    parts: Sequence[Part],
    found: set[int],
    of: str,
    may: Callable[[Part], bool],
) -> None:
    """Refuse a ``recompute`` pattern none of whose matches can be recomputed."""
    for pattern in patterns:
        named = [i for i, part in enumerate(parts) if _names(part, i, pattern)]
        if not found.intersection(named):
            first = parts[named[0]]
            kept = any(may(parts[i]) for i in named)
            raise SchedsimError(
                f"recompute: {shown(pattern)} names {shown(first.name)} of {of}, which "
                + ("is kept" if kept else "runs once, or not in the forward"),
                hint="leave it out of keep" if kept else "name ops of the forward without effects",
            )


def evicts_some(workload: Chain | Graph) -> bool:
    """Whether something of `workload` must be recomputed. O(ops), of a graph once."""
    if isinstance(workload, Chain):
        return any(stage.rule == "recompute" for stage in workload.stages)
    return bool(workload.evicted)


def keeps_some(workload: Chain | Graph) -> bool:
    """Whether a stage of a chain must keep its bundle; ``False`` for graphs, whose ops say it."""
    return isinstance(workload, Chain) and any(stage.rule == "keep" for stage in workload.stages)


_APART = {
    "link": ("a link", "--link"),
    "levels": ("memory levels", "--memory-level"),
    "allow": ("variants", "--allow"),
    "order": ("order 'free'", "--order free"),
}


def check_beside_recompute(options: Mapping[str, Any], *, as_flags: bool = False) -> None:
    """Refuse options of a planner that forced recomputation does not go with.

    Parameters
    ----------
    options
        As planners take them; an order is refused where it is free, others where they are given.
    as_flags
        Name them as the command line does.

    Raises
    ------
    UnsupportedError

    Examples
    --------
    >>> check_beside_recompute({"order": "fixed", "link": None})
    """
    for name, (words, flag) in _APART.items():
        value = options.get(name)
        if value == "free" if name == "order" else value:
            rule, other = ("--recompute", flag) if as_flags else ("recompute", words)
            raise UnsupportedError(
                f"{rule} does not go with {other}", hint="leave one of the two out"
            )


def check_evicted(graph: Graph, schedule: Schedule) -> None:
    """Refuse `schedule` where it keeps what must be recomputed. O(runs + reads); else O(1).

    The forward ends with the last first run of an op before the first run of a backward op. A run
    that reads an evicted tensor after the forward must read an instance that was written after it.

    Raises
    ------
    InvalidScheduleError
        A later run reads such a tensor as the forward wrote it; the message names run and tensor.
    """
    evicted = graph.evicted
    if not evicted:
        return
    runs = schedule.bind(graph).tolist()
    forward_end = end_of_forward(graph, runs)
    written: set[str] = set()
    for at in range(forward_end + 1, len(runs)):
        op = graph.ops[runs[at]]
        for tensor in op.reads:
            if tensor in evicted and tensor not in written:
                raise InvalidScheduleError(
                    f"run {at}, of {op.name}, reads {tensor} as the forward wrote it, "
                    "which must be recomputed",
                    rule="evicted",
                    run_index=at,
                    op_name=op.name,
                )
        written.update(op.writes)


def is_evicted(graph: Graph, schedule: Schedule) -> bool:
    """Whether `schedule` recomputes what it must, by the rule of `check_evicted`."""
    try:
        check_evicted(graph, schedule)
    except InvalidScheduleError:
        return False
    return True


def end_of_forward(graph: Graph, runs: Sequence[int]) -> int:
    """Index in `runs` of the last first run of an op before the backward; -1 for none. O(runs)."""
    forward_end = -1
    seen: set[int] = set()
    for at, run in enumerate(runs):
        if graph.ops[run].phase == "backward":
            return forward_end
        if run not in seen:
            seen.add(run)
            forward_end = at
    return len(runs) - 1  # there is no backward
