"""The rules of several streams word by word, slowly: what the engine is held against.

At every instant all that happens is found by looking at everything, and the bytes in use are added
up from nothing each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from schedsim import Graph


@dataclass(eq=False)
class Instance:
    tensor: str
    writer: int | None
    readers: list[int]
    optional: bool
    source: Instance | None = None
    takes_over: bool = False


@dataclass
class SlowCourse:
    start_s: list[float | None]
    end_s: list[float | None]
    peak: dict[str, int]
    stuck: bool
    memory: dict[str, list[int]] = field(default_factory=dict)  # after each event
    events: list[tuple[int, str]] = field(default_factory=list)


class SlowEngine:
    """One simulation of `names` on `graph`."""

    def __init__(self, graph: Graph, names: list[str], capacities: Mapping[str, int]) -> None:
        self.graph = graph
        self.ops = [next(op for op in graph.ops if op.name == name) for name in names]
        self.capacities = capacities
        self.start: list[float | None] = [None] * len(names)
        self.end: list[float | None] = [None] * len(names)
        self.ended = [False] * len(names)
        self.sizes = dict(graph.inputs)
        self.pool = {name: graph.input_pools.get(name, "device") for name in graph.inputs}
        for op in graph.ops:
            compute = op.stream.startswith("compute:")
            home = op.stream.replace("compute", "device") if compute else "device"
            for tensor, size in op.writes.items():
                self.sizes[tensor] = size
                self.pool[tensor] = op.pools.get(tensor, home)
        latest = {name: Instance(name, None, [], True) for name in graph.inputs}
        self.instances = list(latest.values())
        self.inputs: list[list[Instance]] = []
        self.made: list[list[Instance]] = []
        for k, op in enumerate(self.ops):
            self.inputs.append([latest[tensor] for tensor in op.reads])
            for instance in self.inputs[k]:
                instance.readers.append(k)
            made = []
            for tensor in op.writes:
                source = latest.get(op.in_place.get(tensor, ""))
                made.append(Instance(tensor, k, [], tensor in op.optional, source))
            self.made.append(made)
            self.instances += made
            latest.update({instance.tensor: instance for instance in made})
        self.kept = [latest[tensor] for tensor in graph.results]
        pools = {"device", *self.pool.values(), *graph.pool_static_bytes}
        self.pools = sorted(pools | {self.home(k) for k in range(len(self.ops))})

    def home(self, k: int) -> str:
        stream = self.ops[k].stream
        return stream.replace("compute", "device") if stream.startswith("compute:") else "device"

    def built(self, instance: Instance) -> bool:
        """Whether it is ever materialised."""
        return bool(instance.readers) or not instance.optional or instance in self.kept

    def over(self, instance: Instance) -> bool:
        """Whether all runs that use it have ended."""
        users = [*instance.readers] + ([] if instance.writer is None else [instance.writer])
        return instance not in self.kept and all(self.ended[k] for k in users)

    def bytes_in_use(self, pool: str) -> int:
        static = self.graph.static_bytes if pool == "device" else 0
        total = static + self.graph.pool_static_bytes.get(pool, 0)
        for instance in self.instances:
            begun = instance.writer is None or self.start[instance.writer] is not None
            if not begun or self.over(instance) or not self.built(instance):
                continue
            if self.pool[instance.tensor] != pool:
                continue
            total += self.sizes[instance.tensor]
            source = instance.source
            if instance.takes_over and source is not None and not self.over(source):
                total -= min(self.sizes[instance.tensor], self.sizes[source.tensor])
        for k, op in enumerate(self.ops):
            if self.start[k] is not None and not self.ended[k] and self.home(k) == pool:
                saves = any(i.optional and self.built(i) for i in self.made[k])
                differs = saves and op.saving_workspace_bytes is not None
                total += op.saving_workspace_bytes if differs else op.workspace_bytes
        return total

    def may_start(self, k: int) -> bool:
        """All but memory: the stream, the inputs, and of a copy its place in the schedule."""
        op = self.ops[k]
        if self.start[k] is not None:
            return False
        if not all(self.ended[j] for j in range(k) if self.ops[j].stream == op.stream):
            return False
        if not all(i.writer is None or self.ended[i.writer] for i in self.inputs[k]):
            return False
        if not op.required and not op.stream.startswith("compute"):
            touched = {self.pool[tensor] for tensor in (*op.reads, *op.writes)}
            for j in range(k):
                compute = self.ops[j].stream.startswith("compute")
                if compute and self.home(j) in touched and self.start[j] is None:
                    return False
        return True

    def try_start(self, k: int, now: float) -> bool:
        """Start run `k`, unless its memory does not fit."""
        for instance in self.made[k]:
            source = instance.source
            if source is not None and source not in self.kept and self.built(instance):
                users = [*source.readers] + ([] if source.writer is None else [source.writer])
                instance.takes_over = all(self.ended[j] for j in users if j != k)
        self.start[k] = now
        if all(self.bytes_in_use(p) <= size for p, size in self.capacities.items()):
            return True
        self.start[k] = None
        for instance in self.made[k]:
            instance.takes_over = False
        return False

    def run(self) -> SlowCourse:
        now = 0.0
        events: list[tuple[int, str]] = []
        memory = {pool: [] for pool in self.pools}
        peak = {pool: self.bytes_in_use(pool) for pool in self.pools}
        if any(peak[pool] > size for pool, size in self.capacities.items()):
            return SlowCourse(self.start, self.end, peak, True)

        def note(k: int, what: str) -> None:
            events.append((k, what))
            for pool in self.pools:
                memory[pool].append(self.bytes_in_use(pool))
                if what == "start":
                    peak[pool] = max(peak[pool], memory[pool][-1])

        while True:
            starting = True
            while starting:
                starting = False
                for k in range(len(self.ops)):
                    if self.may_start(k) and self.try_start(k, now):
                        self.end[k] = now + self.ops[k].time_s
                        note(k, "start")
                        starting = True
                        break
            going = [
                k for k in range(len(self.ops)) if self.start[k] is not None and not self.ended[k]
            ]
            if not going:
                break
            now = min(self.end[k] for k in going)
            for k in going:
                if self.end[k] == now:
                    self.ended[k] = True
                    note(k, "end")
        stuck = not all(self.ended)
        return SlowCourse(self.start, self.end, peak, stuck, memory, events)


def slow_course(
    graph: Graph, names: list[str], capacities: Mapping[str, int] | None = None
) -> SlowCourse:
    """The course of events when `names` run on `graph`."""
    return SlowEngine(graph, names, capacities or {}).run()
