"""Where the workload of a plan comes from, so that a plan file alone is enough to load it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

SourceKind = Literal["formula", "file", "model"]
SOURCE_KINDS: tuple[SourceKind, ...] = ("formula", "file", "model")


@dataclass(frozen=True, slots=True)
class WorkloadSource:
    """A formula with its options, a workload file, or a real model.

    Attributes
    ----------
    kind
        ``"formula"``: `options` build the workload. ``"file"``: the file `path` holds it.
        ``"model"``: it is captured from `target`.
    options
        For a formula, the given fields of `schedsim.workloads.WorkloadOptions`; for a model,
        ``level`` and ``device``.
    path
        For a file, its path as it was given.
    target
        For a model, ``FILE.py:FUNCTION``, ``model:NAME,...`` or ``hf:NAME,...``.
    """

    kind: SourceKind
    options: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""
    target: str = ""

    def __str__(self) -> str:
        if self.kind == "formula":
            return " ".join(f"{name}={value}" for name, value in self.options.items())
        return self.path or self.target
