"""Ops: the nodes of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..checks.value_checks import (
    check_bytes,
    check_name,
    check_own_bytes,
    check_seconds,
    shown,
    shown_key,
)
from ..errors import InvalidWorkloadError
from .streams import COMPUTE, device_of, is_compute

PHASES = ("forward", "loss", "backward")


@dataclass(frozen=True, slots=True)
class Op:
    """One op of a graph.

    Parameters
    ----------
    name
        Unique in its graph.
    phase
        ``"forward"``, ``"loss"`` or ``"backward"``.
    time_s
        Time of one run, in seconds.
    workspace_bytes
        Temporary bytes that live only while the op runs. Negative for an op of the loss or the
        backward that frees part of what it reads before it writes: then the op's peak is so much
        below the sum of what it reads and writes. Outputs and workspace together are never
        negative.
    reads
        Names of the tensors read.
    writes
        Tensors written, with their sizes in bytes.
    optional
        Tensors of `writes` that a run materialises only if a later run reads that instance.
    once
        The op must not run twice (it accumulates, or has another effect).
    saving_workspace_bytes
        Workspace of a run that materialises an optional output; ``None`` for the same as
        `workspace_bytes`.
    in_place
        Output -> input whose storage the output takes over, if this run is the input's last use.
    stream
        The stream the op runs on (see `schedsim.dataflow.streams`).
    pools
        Written tensor -> memory pool, for tensors that do not live on the device of the stream.
    evicted
        Tensors of `writes` that are not kept from the forward to the backward: a run of the
        backward must read an instance that was written after the forward (see
        `schedsim.dataflow.recomputation_rules.check_evicted`). Plans hold to it.
    required
        Whether every schedule must run the op. Only copies may be left out. A copy starts where the
        schedule puts it (see `schedsim.simulation.engine`), and may write a tensor again that
        another op computes.
    """

    name: str
    phase: str = "forward"
    time_s: float = 0.0
    workspace_bytes: int = 0
    reads: tuple[str, ...] = ()
    writes: Mapping[str, int] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    once: bool = False
    in_place: Mapping[str, str] = field(default_factory=dict)
    stream: str = COMPUTE
    pools: Mapping[str, str] = field(default_factory=dict)
    saving_workspace_bytes: int | None = None
    required: bool = True
    evicted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Own copies: changing the list or dict that was passed does not change the op.
        for name in ("reads", "optional", "evicted"):
            object.__setattr__(self, name, as_names(getattr(self, name), name))
        for name in ("writes", "in_place", "pools"):
            object.__setattr__(self, name, as_mapping(getattr(self, name), name))

    @classmethod
    def unchecked(
        cls,
        name: str,
        phase: str,
        time_s: float,
        workspace_bytes: int,
        reads: tuple[str, ...],
        writes: dict[str, int],
        *,
        in_place: dict[str, str],
        stream: str = COMPUTE,
    ) -> Op:
        """An op of values that are known to be valid, whose dicts nobody else changes.

        Other fields have their defaults. For ops that formulas write by the hundred thousand: it
        takes a quarter of the time.
        """
        op = object.__new__(cls)
        _set_name(op, name)
        _set_phase(op, phase)
        _set_time(op, time_s)
        _set_workspace(op, workspace_bytes)
        _set_reads(op, reads)
        _set_writes(op, writes)
        _set_in_place(op, in_place)
        _set_stream(op, stream)
        for set_field, value in _SET_OTHERS:
            set_field(op, value)
        return op

    @property
    def is_copy(self) -> bool:
        """Whether the op is a copy, which runs only where a schedule says so."""
        return not self.required and not is_compute(self.stream)

    def pool_of(self, tensor: str) -> str:
        """The memory pool where the written `tensor` lives."""
        return self.pools.get(tensor, device_of(self.stream))

    def check(self, path: str) -> None:
        """Raise `InvalidWorkloadError` naming the field below `path` that is wrong."""
        check_name(self.name, f"{path}.name")
        if self.phase not in PHASES:
            raise InvalidWorkloadError(
                f"{shown(self.phase)} is not a phase",
                path=f"{path}.phase",
                hint=f"one of {', '.join(PHASES)}",
            )
        check_seconds(self.time_s, f"{path}.time_s")
        if self.saving_workspace_bytes is not None:
            check_bytes(self.saving_workspace_bytes, f"{path}.saving_workspace_bytes")
        if len(set(self.reads)) != len(self.reads):
            again = next(i for i, it in enumerate(self.reads) if it in self.reads[:i])
            raise InvalidWorkloadError(
                f"{shown(self.reads[again])} is listed twice", path=f"{path}.reads[{again}]"
            )
        for tensor, size in self.writes.items():
            check_name(tensor, f"{path}.writes")
            check_bytes(size, f"{path}.writes.{shown_key(tensor)}")
        freeing = 0 if self.phase == "forward" else sum(self.writes.values())
        check_own_bytes(self.workspace_bytes, freeing, f"{path}.workspace_bytes")
        for i, tensor in enumerate(self.optional):
            if tensor not in self.writes:
                raise InvalidWorkloadError(
                    f"the op does not write {shown(tensor)}", path=f"{path}.optional[{i}]"
                )
        for i, tensor in enumerate(self.evicted):
            if tensor not in self.writes:
                raise InvalidWorkloadError(
                    f"the op does not write {shown(tensor)}", path=f"{path}.evicted[{i}]"
                )
        if self.evicted and (self.once or self.phase != "forward"):
            raise InvalidWorkloadError(
                "only an op of the forward that may run again can be evicted from",
                path=f"{path}.evicted",
            )
        for output, source in self.in_place.items():
            if output not in self.writes or source not in self.reads:
                raise InvalidWorkloadError(
                    f"{shown(output)} must be written and {shown(source)} read by the op",
                    path=f"{path}.in_place",
                )
        if len(set(self.in_place.values())) != len(self.in_place):
            raise InvalidWorkloadError(
                "two outputs take over the same input", path=f"{path}.in_place"
            )
        check_name(self.stream, f"{path}.stream")
        if not self.required and is_compute(self.stream):
            raise InvalidWorkloadError(
                f"only a copy need not run, and {shown(self.stream)} is no copy stream",
                path=f"{path}.required",
                hint="leave the op out, or give it as a variant of the ops that it stands in for",
            )
        for tensor, pool in self.pools.items():
            check_name(pool, f"{path}.pools.{shown_key(tensor)}")
            if tensor not in self.writes:
                raise InvalidWorkloadError(
                    f"the op does not write {shown(tensor)}", path=f"{path}.pools"
                )


def as_names(value: Iterable[str], path: str) -> tuple[str, ...]:
    """`value` as a tuple of names; a single text is refused, as its letters would become names."""
    if isinstance(value, str):
        raise InvalidWorkloadError(
            f"{shown(value)} is one text, not a list of tensors",
            path=path,
            hint="a tuple of one needs a comma: ('x',)",
        )
    return as_items(value, path)


def as_items(value: Iterable[Any], path: str, kind: type | None = None) -> tuple[Any, ...]:
    """`value` as a tuple, whose entries must be of the class `kind` where one is given."""
    try:
        items = tuple(value)
    except TypeError:
        raise InvalidWorkloadError(f"{shown(value)} is not a list", path=path) from None
    for i, item in enumerate(items if kind is not None else ()):
        if not isinstance(item, kind or object):
            raise InvalidWorkloadError(
                f"{shown(item)} is not of class {kind.__name__ if kind else ''}",
                path=f"{path}[{i}]",
            )
    return items


def as_mapping(value: Mapping[str, Any], path: str) -> dict[str, Any]:
    """`value` as a new dict."""
    if not isinstance(value, Mapping):
        raise InvalidWorkloadError(
            f"{shown(value)} is not a dict", path=path, hint="names with their values: {'x': 8}"
        )
    for key in value:
        check_name(key, path)
    return dict(value)


_GIVEN = ("name", "phase", "time_s", "workspace_bytes", "reads", "writes", "in_place", "stream")
(
    _set_name,
    _set_phase,
    _set_time,
    _set_workspace,
    _set_reads,
    _set_writes,
    _set_in_place,
    _set_stream,
) = (vars(Op)[name].__set__ for name in _GIVEN)
_PLAIN = Op("plain")
_SET_OTHERS = [
    (vars(Op)[one.name].__set__, getattr(_PLAIN, one.name))
    for one in fields(Op)
    if one.name not in _GIVEN
]
"""Setters of all other fields with their defaults, which no op changes."""
