"""Tiny graphs of several families, some of whose ops take no time and tensors no bytes."""

from __future__ import annotations

import numpy as np

from schedsim import Graph, Op


class _Draw:
    """Whole times and sizes, of which some are zero in every third graph."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.zeros = rng, rng.random() < 0.3

    def below(self, count: int) -> int:
        return int(self.rng.integers(count))

    def time_s(self) -> float:
        return 0.0 if self.zeros and self.rng.random() < 0.4 else 1.0 + self.below(5)

    def size(self) -> int:
        return 0 if self.zeros and self.rng.random() < 0.3 else 1 + self.below(8)


def tiny_graph(seed: int) -> Graph:
    """Of three to nine ops: a forward with results, a training line with skips, or a tree.

    The family is the seed's remainder by three.
    """
    draw = _Draw(np.random.default_rng(seed))
    num_ops = 3 + draw.below(5)
    return (_forward, _line, _tree)[seed % 3](draw, num_ops)


def _forward(draw: _Draw, num_ops: int) -> Graph:
    ops: list[Op] = []
    for i in range(num_ops):
        near = range(max(0, i - 3), i)
        reads = {f"t{near[draw.below(len(near))]}" for _ in range(draw.below(3)) if near}
        ops.append(
            Op(
                f"o{i}",
                time_s=draw.time_s(),
                reads=tuple(sorted(reads)),
                writes={f"t{i}": draw.size()},
                workspace_bytes=draw.below(4),
            )
        )
    results = tuple(f"t{i}" for i in range(num_ops) if draw.rng.random() < 0.3)
    return Graph("forward", tuple(ops), results=results)


def _line(draw: _Draw, num_ops: int) -> Graph:
    count = max(2, num_ops // 2)
    ops = []
    for i in range(count):
        back = [i - 1] * (i > 0) + [i - 2] * (i > 1 and draw.rng.random() < 0.4)
        reads = tuple(f"t{j}" for j in back)
        ops.append(Op(f"f{i}", time_s=draw.time_s(), reads=reads, writes={f"t{i}": draw.size()}))
    for i in range(count - 1, -1, -1):
        reads = (f"t{i}",)
        reads += (f"t{i - 1}",) if i and draw.rng.random() < 0.7 else ()
        reads += (f"g{i + 1}",) if i < count - 1 else ()
        writes = {f"g{i}": draw.size()}
        ops.append(Op(f"b{i}", "backward", time_s=draw.time_s(), reads=reads, writes=writes))
    return Graph("line", tuple(ops))


def _tree(draw: _Draw, num_ops: int) -> Graph:
    ops = [Op(f"l{i}", time_s=draw.time_s(), writes={f"t{i}": draw.size()}) for i in range(2)]
    open_ends = ["t0", "t1"]
    for i in range(2, num_ops):
        reads = (open_ends.pop(draw.below(len(open_ends))), *open_ends[:1])
        ops.append(Op(f"l{i}", time_s=draw.time_s(), reads=reads, writes={f"t{i}": draw.size()}))
        open_ends.append(f"t{i}")
    reads = tuple(dict.fromkeys([*open_ends, "t0"]))
    return Graph("tree", (*ops, Op("end", time_s=draw.time_s(), reads=reads)))
