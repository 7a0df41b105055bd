"""Ops that must run once: collectives, routers, kernels whose second run gives other results."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

from ..errors import SchedsimError
from .graph import Graph


def run_once(graph: Graph, patterns: str | Iterable[str]) -> Graph:
    """`graph` with the ops that `patterns` name running once in every schedule.

    What such an op writes is then kept until its last reader. The mark is part of the workload, so
    planners, bounds and the simulator all respect it.

    Parameters
    ----------
    patterns
        Patterns of op names, like ``"*.router.*"`` or ``"*softmax*"``; or the path of a module,
        like ``"h.3.moe"``, for all ops in it.

    Raises
    ------
    SchedsimError
        A pattern names no op; the hint gives the nearest name.

    Examples
    --------
    >>> from schedsim import Op
    >>> graph = Graph("g", (Op("moe.router.mm", writes={"x": 8}), Op("b", reads=("x",))))
    >>> [op.once for op in run_once(graph, "moe.router").ops]
    [True, False]
    """
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    names = graph.op_names
    for pattern in wanted:
        if not any(matches(name, pattern) for name in names):
            near = difflib.get_close_matches(pattern, names, n=1, cutoff=0.3)
            raise SchedsimError(
                f"{pattern!r} names no op of {graph.name}",
                hint=f"did you mean {near[0]!r}?" if near else "give names of ops, with *",
            )
    return with_once(graph, wanted)


def with_once(graph: Graph, patterns: Iterable[str]) -> Graph:
    """Like `run_once`, but a pattern may match nothing: it may be meant for another graph."""
    wanted = list(patterns)
    ops = tuple(
        replace(op, once=True) if any(matches(op.name, p) for p in wanted) else op
        for op in graph.ops
    )
    return replace(graph, ops=ops)


def matches(name: str, pattern: str) -> bool:
    """Whether `pattern` names the op, or a module that the op is in; in forward or backward."""
    own = name.removeprefix("grad.")
    return any(fnmatchcase(one, p) for one in (name, own) for p in (pattern, f"{pattern}.*"))
