"""Costs of ops by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Costs:
    """Time and workspace of each op of a graph.

    Attributes
    ----------
    time_s
        Op -> seconds of one run.
    workspace_bytes
        Op -> temporary bytes of one run; an op that is missing was not measured.
    source
        Where the numbers come from, in words.
    size_bytes
        Tensor -> bytes that its kernel really returned, where they differ from tracing.
    notes
        Lines that a user must know.
    """

    time_s: Mapping[str, float]
    workspace_bytes: Mapping[str, int]
    source: str
    size_bytes: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
