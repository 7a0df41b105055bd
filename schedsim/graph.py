"""Graphs: the dataflow of one whole training step, as ops and tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ._arrays import GraphArrays, build_arrays
from ._checks import check_bytes, check_name, check_seconds, check_total, shown, shown_key
from .errors import InvalidWorkloadError
from .variants import GraphVariant, check_distinct

PHASES = ("forward", "loss", "backward")
COMPUTE = "compute"
DEVICE = "device"


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
        Temporary bytes that live only while the op runs.
    reads
        Names of the tensors read.
    writes
        Tensors written, with their sizes in bytes.
    optional
        Those of `writes` that are materialised only where somebody reads that instance.
    once
        The op may not run twice (it accumulates, or has another effect).
    saving_workspace_bytes
        Workspace of a run in which an optional output is materialised; `workspace_bytes` where
        ``None``.
    in_place
        Output -> input whose storage it takes over, wherever this run is the input's last use.
    queue
        The queue the op runs on.
    pools
        Written tensor -> memory pool, for those that do not live on the device.
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
    queue: str = COMPUTE
    pools: Mapping[str, str] = field(default_factory=dict)
    saving_workspace_bytes: int | None = None

    def __post_init__(self) -> None:
        # Copies: a caller who changes the list or dict that was passed does not change the op.
        for name in ("reads", "optional"):
            object.__setattr__(self, name, _names(getattr(self, name), name))
        for name in ("writes", "in_place", "pools"):
            object.__setattr__(self, name, dict(getattr(self, name)))

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
        check_bytes(self.workspace_bytes, f"{path}.workspace_bytes")
        if self.saving_workspace_bytes is not None:
            check_bytes(self.saving_workspace_bytes, f"{path}.saving_workspace_bytes")
        if len(set(self.reads)) != len(self.reads):
            raise InvalidWorkloadError("a tensor is listed twice", path=f"{path}.reads")
        for tensor, size in self.writes.items():
            check_name(tensor, f"{path}.writes")
            check_bytes(size, f"{path}.writes.{shown_key(tensor)}")
        for i, tensor in enumerate(self.optional):
            if tensor not in self.writes:
                raise InvalidWorkloadError(
                    f"the op does not write {shown(tensor)}", path=f"{path}.optional[{i}]"
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
        check_name(self.queue, f"{path}.queue")
        for tensor, pool in self.pools.items():
            check_name(pool, f"{path}.pools.{shown_key(tensor)}")
            if tensor not in self.writes:
                raise InvalidWorkloadError(
                    f"the op does not write {shown(tensor)}", path=f"{path}.pools"
                )


def _names(value: Iterable[str], path: str) -> tuple[str, ...]:
    if isinstance(value, str):  # each letter would be taken for a tensor
        raise InvalidWorkloadError(
            f"{shown(value)} is one text, not a list of tensors",
            path=path,
            hint="a tuple of one needs a comma: ('x',)",
        )
    return tuple(value)


@dataclass(frozen=True)
class Graph:
    """The dataflow of a training step; the order of `ops` is the store-all order.

    Every op must run at least once. An op may read only tensors written by ops that stand before
    it, or graph inputs.

    Parameters
    ----------
    name
        What the workload is called in plans and tables.
    ops
        At least one, in an order in which the step can run.
    inputs
        Tensors that exist when the step starts, with their sizes in bytes.
    static_bytes
        Parameters, gradients, optimizer state: resident all the time.
    results
        Tensors that live to the end of the step.
    variants
        Other ways to save tensors, that a planner may choose where their kinds are allowed.

    Examples
    --------
    >>> graph = Graph("g", (Op("f", writes={"x": 8}), Op("b", "backward", reads=("x",))))
    >>> graph.num_ops, graph.op_names
    (2, ('f', 'b'))
    """

    name: str
    ops: tuple[Op, ...]
    inputs: Mapping[str, int] = field(default_factory=dict)
    static_bytes: int = 0
    results: tuple[str, ...] = ()
    variants: tuple[GraphVariant, ...] = ()

    kind = "graph"

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        check_bytes(self.static_bytes, "static_bytes")
        object.__setattr__(self, "ops", tuple(self.ops))
        object.__setattr__(self, "inputs", dict(self.inputs))
        object.__setattr__(self, "results", _names(self.results, "results"))
        if not self.ops:
            raise InvalidWorkloadError("a graph needs at least one op", path="ops")
        for tensor, size in self.inputs.items():
            check_name(tensor, "inputs")
            check_bytes(size, f"inputs.{shown_key(tensor)}")
        self._check_names()
        self._check_reads()
        for i, tensor in enumerate(self.results):
            if tensor not in self._producers and tensor not in self.inputs:
                raise InvalidWorkloadError(f"unknown tensor {shown(tensor)}", path=f"results[{i}]")
        object.__setattr__(self, "variants", tuple(self.variants))
        for i, variant in enumerate(self.variants):
            variant.check(f"variants[{i}]", self)
        check_distinct(self.variants, "variants")
        total = self.static_bytes + sum(self.inputs.values())
        for op in self.ops:
            total += sum(op.writes.values()) + op.workspace_bytes
            total += op.saving_workspace_bytes or 0
        check_total(total, "ops")

    def _check_names(self) -> None:
        seen: dict[str, int] = {}
        producers: dict[str, int] = {}
        for i, op in enumerate(self.ops):
            op.check(f"ops[{i}]")
            if op.name in seen:
                raise InvalidWorkloadError(
                    f"duplicate name {shown(op.name)}, also of ops[{seen[op.name]}]",
                    path=f"ops[{i}].name",
                )
            seen[op.name] = i
            for tensor in op.writes:
                if tensor in producers or tensor in self.inputs:
                    other = f"ops[{producers[tensor]}]" if tensor in producers else "inputs"
                    raise InvalidWorkloadError(
                        f"duplicate tensor {shown(tensor)}, also written by {other}",
                        path=f"ops[{i}].writes.{shown_key(tensor)}",
                    )
                producers[tensor] = i
        object.__setattr__(self, "_op_index", seen)
        object.__setattr__(self, "_producers", producers)

    def _check_reads(self) -> None:
        for i, op in enumerate(self.ops):
            for k, tensor in enumerate(op.reads):
                producer = self._producers.get(tensor, -1)
                if producer < 0 and tensor not in self.inputs:
                    raise InvalidWorkloadError(
                        f"unknown tensor {shown(tensor)}", path=f"ops[{i}].reads[{k}]"
                    )
                if producer >= i:
                    # A cycle cannot be put in any order; say which of the two it is.
                    cyclic = self._reaches(i, producer)
                    raise InvalidWorkloadError(
                        f"{shown(tensor)} is written by ops[{producer}], "
                        + ("which depends on this op: a cycle" if cyclic else "which stands later"),
                        path=f"ops[{i}].reads[{k}]",
                        hint="" if cyclic else "list the ops in an order in which they can run",
                    )

    def _reaches(self, start: int, goal: int) -> bool:
        """Whether op `goal` needs the result of op `start`, through reads."""
        stack, seen = [goal], set()
        while stack:
            node = stack.pop()
            if node == start:
                return True
            if node in seen:
                continue
            seen.add(node)
            reads = self.ops[node].reads
            stack.extend(self._producers[t] for t in reads if t in self._producers)
        return False

    _op_index: Mapping[str, int] = field(init=False, repr=False, compare=False)
    _producers: Mapping[str, int] = field(init=False, repr=False, compare=False)

    @property
    def num_ops(self) -> int:
        """Number of ops."""
        return len(self.ops)

    @cached_property
    def op_names(self) -> tuple[str, ...]:
        """Names of the ops, in store-all order."""
        return tuple(op.name for op in self.ops)

    @property
    def graph(self) -> Graph:
        """The graph itself, so that chains and graphs are lowered the same way."""
        return self

    def op_index(self, name: str) -> int:
        """Index of the op called `name`; ``KeyError`` where there is none."""
        return self._op_index[name]

    def producer(self, tensor: str) -> int | None:
        """Index of the op that writes `tensor`; ``None`` for a graph input."""
        return self._producers.get(tensor)

    @cached_property
    def store_all_s(self) -> float:
        """Time of the step when nothing is recomputed, in seconds."""
        return math.fsum(op.time_s for op in self.ops)

    @cached_property
    def arrays(self) -> GraphArrays:
        """The graph as flat arrays, for the simulator and the planners."""
        return build_arrays(self)

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)
