"""How steps of a model are planned: the arguments of `rematerialize`, and the ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from schedsim.errors import SchedsimError, UnsupportedError

from ..guards.differential import read_check
from ..ranks import ALONE, Ranks
from ..ways.chunk import read_chunks

LEVELS = ("auto", "op", "block")
COSTS = ("measured", "operations")
_PLACE = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True)
class Settings:
    """How steps of a model are planned: the arguments of `rematerialize`, and the ranks."""

    budget: int | str
    loss: Callable[..., Tensor] | None = None
    optimizer: Any = None
    level: str = "auto"
    planner: str = "auto"
    time_limit_s: float | None = None
    keep_gradients: bool = False
    extra_bytes: int = 0
    costs: str = "measured"
    options: Mapping[str, Any] = field(default_factory=dict)
    chunk: Any = None
    accumulate: int | str | None = None
    offload: Any = None
    host_bytes: int | str | None = None
    check: str | int = "plan"
    ranks: Ranks = ALONE
    compile: bool = False
    remeasure: bool = False
    largest: Mapping[int, int] = field(default_factory=dict)

    @property
    def bound_ranks(self) -> Ranks:
        """The ranks that must follow one plan together with this rank."""
        return self.ranks if self.ranks.bound else ALONE

    def alike(self) -> tuple[tuple[str, str], ...]:
        """Settings that must be equal on all ranks that follow one plan, by name, in words."""
        names = (
            "level",
            "planner",
            "time_limit_s",
            "keep_gradients",
            "costs",
            "options",
            "chunk",
            "accumulate",
            "offload",
            "check",
            "compile",
        )
        # A function lies elsewhere in each process.
        rows = ((name, repr(getattr(self, name))) for name in names)
        return tuple((name, _PLACE.sub("", words)) for name, words in rows)

    def __post_init__(self) -> None:
        read_check(self.check)
        if self.level not in LEVELS:
            raise SchedsimError(f"level={self.level!r} is unknown", hint="auto, op or block")
        if self.costs not in COSTS:
            raise SchedsimError(f"costs={self.costs!r} is unknown", hint=" or ".join(COSTS))
        if self.costs != "measured" and self.level == "block":
            raise SchedsimError(
                f"costs={self.costs!r} at the block level", hint="blocks have measured times alone"
            )
        num = self.accumulate
        whole = isinstance(num, int) and not isinstance(num, bool) and num >= 1
        if not (num is None or num == "auto" or whole):
            raise SchedsimError(
                f"accumulate={num!r} is not understood", hint="'auto', or a number of micro-batches"
            )
        read_chunks(self.chunk)
        if self.offload and self.level == "op":
            raise UnsupportedError(
                "offload= is of the block level: ops run on one stream", hint="level='block'"
            )
        if self.compile and (self.level == "block" or self.offload):
            what = "offload=" if self.offload else "level='block'"
            raise UnsupportedError(
                f"compile=True is of the op level, and {what} of the block level",
                hint=f"leave {what} or compile= out",
            )
