"""Graphs: the dataflow of one whole training step, as ops and tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ..checks.value_checks import check_bytes, check_name, check_total, shown, shown_key
from ..errors import InvalidWorkloadError
from .arrays import GraphArrays, build_arrays
from .op import PHASES, Op, as_items, as_mapping, as_names
from .recorded_step import RecordedStep
from .shown_in_notebooks import ShownInNotebooks
from .store_all_time import store_all_makespan
from .streams import COMPUTE, DEVICE, HOST, is_compute
from .variants import GraphVariant, check_distinct

__all__ = ["COMPUTE", "DEVICE", "HOST", "PHASES", "Graph", "Op"]


@dataclass(frozen=True)
class Graph(ShownInNotebooks):
    """The dataflow of a training step; the order of `ops` is the store-all order.

    Every required op must run at least once. An op may read only tensors written by ops that stand
    before it, or graph inputs. One op writes a tensor; copies may write the tensor again (see
    `Op.required`), each time as a new instance of the same size in the same pool.

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
    pool_static_bytes
        Resident bytes of memory pools other than ``device``: pool -> bytes.
    input_pools
        Input -> memory pool, for inputs that do not live on the ``device``.
    variants
        Other ways to save tensors, which a planner may choose where their kinds are allowed.
    recorded
        The requests that the ops made of an allocator, where they were recorded; the bytes that an
        allocator reserves are then predicted from these requests. No planner, hash or file uses
        them.

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
    pool_static_bytes: Mapping[str, int] = field(default_factory=dict)
    input_pools: Mapping[str, str] = field(default_factory=dict)
    variants: tuple[GraphVariant, ...] = ()
    recorded: RecordedStep | None = field(default=None, compare=False, repr=False)

    kind = "graph"

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        check_bytes(self.static_bytes, "static_bytes")
        object.__setattr__(self, "ops", as_items(self.ops, "ops", Op))
        object.__setattr__(self, "inputs", as_mapping(self.inputs, "inputs"))
        object.__setattr__(self, "results", as_names(self.results, "results"))
        for field_name in ("pool_static_bytes", "input_pools"):
            object.__setattr__(self, field_name, as_mapping(getattr(self, field_name), field_name))
        if not any(op.required for op in self.ops):
            what = "at least one required op" if self.ops else "at least one op"
            raise InvalidWorkloadError(f"a graph needs {what}", path="ops")
        for tensor, size in self.inputs.items():
            check_name(tensor, "inputs")
            check_bytes(size, f"inputs.{shown_key(tensor)}")
        self._check_pools()
        self._check_names()
        self._check_reads()
        for i, tensor in enumerate(self.results):
            if tensor not in self._producers and tensor not in self.inputs:
                raise InvalidWorkloadError(f"unknown tensor {shown(tensor)}", path=f"results[{i}]")
            if tensor in self._producers and not self.ops[self._producers[tensor]].required:
                raise InvalidWorkloadError(
                    f"{shown(tensor)} is written by copies alone, which need not run",
                    path=f"results[{i}]",
                )
        object.__setattr__(self, "variants", as_items(self.variants, "variants", GraphVariant))
        for i, variant in enumerate(self.variants):
            variant.check(f"variants[{i}]", self)
        check_distinct(self.variants, "variants")
        total = self.static_bytes + sum(self.inputs.values())
        total += sum(self.pool_static_bytes.values())
        for op in self.ops:
            total += sum(op.writes.values()) + op.workspace_bytes
            total += op.saving_workspace_bytes or 0
        check_total(total, "ops")

    @classmethod
    def unchecked(
        cls,
        name: str,
        ops: tuple[Op, ...],
        inputs: dict[str, int],
        static_bytes: int,
        *,
        results: tuple[str, ...] = (),
        recorded: RecordedStep | None = None,
    ) -> Graph:
        """A graph of ops that are known to be valid, without checking each of them again.

        For graphs lowered from a checked workload: names are distinct, each tensor is written
        before it is read, and no op is a copy.
        """
        graph = object.__new__(cls)
        producers = {tensor: i for i, op in enumerate(ops) for tensor in op.writes}
        for field_name, value in (
            ("name", name),
            ("ops", ops),
            ("inputs", inputs),
            ("static_bytes", static_bytes),
            ("results", results),
            ("recorded", recorded),
            ("pool_static_bytes", {}),
            ("input_pools", {}),
            ("variants", ()),
            ("_op_index", {op.name: i for i, op in enumerate(ops)}),
            ("_producers", producers),
        ):
            object.__setattr__(graph, field_name, value)
        return graph

    def _check_pools(self) -> None:
        for pool, size in self.pool_static_bytes.items():
            path = f"pool_static_bytes.{shown_key(pool)}"
            check_name(pool, "pool_static_bytes")
            check_bytes(size, path)
            if pool == DEVICE:
                raise InvalidWorkloadError(
                    "that pool has its own field", path=path, hint="static_bytes is the device's"
                )
        for tensor, pool in self.input_pools.items():
            check_name(pool, f"input_pools.{shown_key(tensor)}")
            if tensor not in self.inputs:
                raise InvalidWorkloadError(f"no input {shown(tensor)}", path="input_pools")

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
                    self._check_rewrite(i, tensor, producers.get(tensor))
                producers.setdefault(tensor, i)
        for tensor in self.inputs:
            producers.pop(tensor, None)
        object.__setattr__(self, "_op_index", seen)
        object.__setattr__(self, "_producers", producers)

    def _check_rewrite(self, i: int, tensor: str, other: int | None) -> None:
        """Check that op `i` may write `tensor` again, which `other` (``None``: an input) wrote."""
        path = f"ops[{i}].writes.{shown_key(tensor)}"
        where = "inputs" if other is None else f"ops[{other}]"
        op = self.ops[i]
        if not op.is_copy:
            # A copy must stand behind the op that produces what it copies.
            raise InvalidWorkloadError(
                f"duplicate tensor {shown(tensor)}, also written by {where}",
                path=path,
                hint="only a copy writes a tensor again: required false, on a copy stream",
            )
        if tensor in op.reads:
            raise InvalidWorkloadError(f"{shown(tensor)} is read by the same op", path=path)
        if other is None:
            size, pool = self.inputs[tensor], self.input_pools.get(tensor, DEVICE)
        else:
            size, pool = self.ops[other].writes[tensor], self.ops[other].pool_of(tensor)
        if (op.writes[tensor], op.pool_of(tensor)) != (size, pool):
            raise InvalidWorkloadError(
                f"{shown(tensor)} has {op.writes[tensor]} bytes in pool {op.pool_of(tensor)!r} "
                f"here, and {size} in {pool!r} in {where}",
                path=path,
            )

    def _check_reads(self) -> None:
        for i, op in enumerate(self.ops):
            for k, tensor in enumerate(op.reads):
                producer = self._producers.get(tensor, -1)
                if producer < 0 and tensor not in self.inputs:
                    raise InvalidWorkloadError(
                        f"unknown tensor {shown(tensor)}", path=f"ops[{i}].reads[{k}]"
                    )
                if is_compute(op.stream) and self.pool_of(tensor) == HOST:
                    raise InvalidWorkloadError(
                        f"{shown(tensor)} is in host memory, where no device computes",
                        path=f"ops[{i}].reads[{k}]",
                        hint="read a copy of it on the device",
                    )
                if producer >= i:
                    # Either the ops form a cycle, which no order can run, or they are only listed
                    # in a wrong order.
                    cyclic = self._reaches(i, producer)
                    raise InvalidWorkloadError(
                        f"{shown(tensor)} is written by ops[{producer}], "
                        + ("which depends on this op: a cycle" if cyclic else "which stands later"),
                        path=f"ops[{i}].reads[{k}]",
                        hint="" if cyclic else "list the ops in an order in which they can run",
                    )

            for output, source in op.in_place.items():
                if op.pool_of(output) != self.pool_of(source):
                    raise InvalidWorkloadError(
                        f"{shown(output)} and {shown(source)} live in different pools",
                        path=f"ops[{i}].in_place",
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
        """Index of the op that writes `tensor`, copies aside; ``None`` for a graph input."""
        return self._producers.get(tensor)

    def stage_label(self, op_name: str) -> str:
        """The name itself: the ops of a graph belong to no stage."""
        return op_name

    def size_of(self, tensor: str) -> int:
        """Bytes of `tensor`; ``KeyError`` where there is none of that name."""
        if tensor in self.inputs:
            return self.inputs[tensor]
        return self.ops[self._producers[tensor]].writes[tensor]

    def pool_of(self, tensor: str) -> str:
        """The memory pool where `tensor` lives; ``KeyError`` where there is none of that name."""
        if tensor in self.inputs:
            return self.input_pools.get(tensor, DEVICE)
        return self.ops[self._producers[tensor]].pool_of(tensor)

    @cached_property
    def evicted(self) -> frozenset[str]:
        """The tensors that must not be kept from the forward to the backward."""
        return frozenset(tensor for op in self.ops for tensor in op.evicted)

    @cached_property
    def one_stream(self) -> bool:
        """Whether all ops run on the ``compute`` stream, in the memory of the ``device``."""
        return (
            all(op.stream == COMPUTE for op in self.ops)
            and all(pool == DEVICE for op in self.ops for pool in op.pools.values())
            and all(pool == DEVICE for pool in self.input_pools.values())
            and not self.pool_static_bytes
        )

    @cached_property
    def store_all_s(self) -> float:
        """Time of the step when nothing is recomputed or copied, in seconds.

        On one stream this is the sum of all times; on several it is the makespan of the required
        ops, each run once, in their order.
        """
        required = [op for op in self.ops if op.required]
        if len({op.stream for op in required}) <= 1:
            return math.fsum(op.time_s for op in required)
        return store_all_makespan(required, self.inputs)

    @cached_property
    def busiest_stream_s(self) -> float:
        """Time of the required ops of the busiest stream: no schedule takes less."""
        streams: dict[str, list[float]] = {}
        for op in self.ops:
            if op.required:
                streams.setdefault(op.stream, []).append(op.time_s)
        return max((math.fsum(times) for times in streams.values()), default=0.0)

    @cached_property
    def arrays(self) -> GraphArrays:
        """The graph as flat arrays, for the simulator and the planners."""
        return build_arrays(self)

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)
