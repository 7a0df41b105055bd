"""Online eviction from its definition: no caches, sets instead of arrays, every h from scratch.

For graphs without inputs, optional outputs, outputs in place, and ops that run once.
"""

from __future__ import annotations

from functools import cache

from schedsim import Graph


class NoRoom(Exception):
    """Everything that is in memory is pinned."""


class SlowDtr:
    """One replay; `runs` are op indices."""

    def __init__(self, graph: Graph, room_bytes: int, heuristic: str) -> None:
        self.graph, self.room_bytes, self.heuristic = graph, room_bytes, heuristic
        self.sizes = {t: size for op in graph.ops for t, size in op.writes.items()}
        self.readers = {
            t: [i for i, op in enumerate(graph.ops) if t in op.reads] for t in self.sizes
        }
        self.last_need = self.last_needs()
        self.memory: set[str] = set()
        self.evicted: set[str] = set()
        self.groups: list[tuple[set[str], list[float]]] = []
        self.pins: list[str] = []
        self.last_access = dict.fromkeys(self.sizes, 0.0)
        self.clock = 0.0
        self.tick = min(op.time_s for op in graph.ops if op.time_s)
        self.started: set[int] = set()
        self.runs: list[int] = []

    def last_needs(self) -> dict[str, int]:
        """By search from every tensor through all that can be made of it."""

        @cache
        def reach(tensor: str) -> int:
            found = self.graph.num_ops if tensor in self.graph.results else -1
            for op in self.readers[tensor]:
                found = max([found, op, *(reach(t) for t in self.graph.ops[op].writes)])
            return found

        return {tensor: reach(tensor) for tensor in self.sizes}

    def replay(self) -> list[int]:
        for step in range(self.graph.num_ops):
            self.run(step)
            for tensor, last in self.last_need.items():
                if last <= step and tensor not in self.graph.results:
                    self.memory.discard(tensor)
                    if tensor in self.evicted:
                        self.evicted.discard(tensor)
                        self.leave_group(tensor)
        for tensor in self.sizes:
            if tensor in self.graph.results:
                self.pins.append(tensor)
                if tensor not in self.memory:
                    self.run(self.graph.producer(tensor))
        return self.runs

    def uses_left(self, tensor: str) -> int:
        later = [op for op in self.readers[tensor] if op not in self.started]
        return len(later) + (tensor in self.graph.results)

    def run(self, index: int) -> None:
        op = self.graph.ops[index]
        self.pins += op.reads
        for tensor in op.reads:
            if tensor not in self.memory:
                self.run(self.graph.producer(tensor))
        while True:
            live = self.memory | set(op.writes)
            if sum(self.sizes[t] for t in live) + op.workspace_bytes <= self.room_bytes:
                break
            free = self.memory - set(self.pins) - set(op.writes)
            free = {t for t in free if self.sizes[t]}
            if not free:
                raise NoRoom
            self.evict(min(free, key=self.rank))
        self.runs.append(index)
        self.started.add(index)
        self.clock += op.time_s
        for tensor in op.reads:
            self.pins.remove(tensor)
        for tensor in op.reads:
            self.last_access[tensor] = self.clock
            if not self.uses_left(tensor) and tensor not in self.pins:
                self.evict(tensor)
        for tensor in op.writes:
            self.last_access[tensor] = self.clock
            if tensor not in self.memory and (self.uses_left(tensor) or tensor in self.pins):
                if tensor in self.evicted:
                    self.evicted.discard(tensor)
                    self.leave_group(tensor)
                self.memory.add(tensor)

    def cost(self, tensor: str) -> float:
        return self.graph.ops[self.graph.producer(tensor)].time_s

    def beside(self, tensor: str) -> set[str]:
        """Evicted tensors that a run ties to `tensor`."""
        made_from = set(self.graph.ops[self.graph.producer(tensor)].reads)
        made_of = {
            t
            for op in self.readers[tensor]
            if op in self.started
            for t in self.graph.ops[op].writes
        }
        return (made_from | made_of) & self.evicted

    def evict(self, tensor: str) -> None:
        self.memory.discard(tensor)
        members, total = {tensor}, self.cost(tensor)
        near = self.beside(tensor)
        for group in [group for group in self.groups if group[0] & near]:
            self.groups.remove(group)
            members |= group[0]
            total += group[1][0]
        self.groups.append((members, [total]))
        self.evicted.add(tensor)

    def leave_group(self, tensor: str) -> None:
        for members, total in self.groups:
            if tensor in members:
                members.discard(tensor)
                total[0] -= self.cost(tensor)

    def ancestors_s(self, tensor: str) -> float:
        ops: set[int] = set()
        todo = [tensor]
        while todo:
            for before in self.graph.ops[self.graph.producer(todo.pop())].reads:
                if before in self.evicted and self.graph.producer(before) not in ops:
                    ops.add(self.graph.producer(before))
                    todo.append(before)
        return sum(self.graph.ops[op].time_s for op in ops)

    def descendants_s(self, tensor: str) -> float:
        seen: set[str] = set()
        todo = [tensor]
        while todo:
            for op in self.readers[todo.pop()]:
                if op in self.started:
                    new = set(self.graph.ops[op].writes) & self.evicted - seen
                    seen |= new
                    todo += new
        return sum(self.graph.ops[op].time_s for op in {self.graph.producer(t) for t in seen})

    def rank(self, tensor: str) -> tuple[float, float, int]:
        return self.h(tensor), self.last_access[tensor], list(self.sizes).index(tensor)

    def h(self, tensor: str) -> float:
        size, own = self.sizes[tensor], self.cost(tensor)
        idle = max(self.clock - self.last_access[tensor], self.tick)
        neighbourhood = own + self.ancestors_s(tensor) + self.descendants_s(tensor)
        near = self.beside(tensor)
        groups = own + sum(total[0] for members, total in self.groups if members & near)
        return {
            "dtr": neighbourhood / (size * idle),
            "dtr_eq": groups / (size * idle),
            "local": own / (size * idle),
            "lru": 1 / idle,
            "size": 1 / size,
            "msps": (own + self.ancestors_s(tensor)) / size,
            "neighbourhood": neighbourhood,
        }[self.heuristic]
