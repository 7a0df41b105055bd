"""Networks put together op by op, and the training steps that follow from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps

import numpy as np
from numpy.random import Generator

from ..checks.checked_arguments import check_arguments
from ..checks.value_checks import shown
from ..dataflow.graph import Graph, Op
from ..errors import SchedsimError

_KB = 1000


@dataclass
class SyntheticNetwork:
    """Forward ops put together one after the other; the backward ones follow from them."""

    rng: Generator
    reads: list[list[int]] = field(default_factory=list)
    time_s: list[float] = field(default_factory=list)
    size_bytes: list[int] = field(default_factory=list)
    view: list[bool] = field(default_factory=list)

    def op(self, *reads: int, size: float = 1.0, time: float = 1.0, view: bool = False) -> int:
        """A new op: `size` in KB and `time` in ms, each spread by a fifth. Its number."""
        low, high = 0.8, 1.2
        self.reads.append(list(reads))
        self.time_s.append(0.0 if view else 1e-3 * time * self.rng.uniform(low, high))
        self.size_bytes.append(0 if view else int(_KB * size * self.rng.uniform(low, high)) + 1)
        self.view.append(view)
        return len(self.reads) - 1

    def forward_ops(self) -> list[Op]:
        """The ops by themselves, each writing ``x<number>``."""
        return [
            Op(
                f"f{i}",
                time_s=self.time_s[i],
                reads=tuple(f"x{r}" for r in self._storage(reads)),
                writes={f"x{i}": self.size_bytes[i]},
            )
            for i, reads in enumerate(self.reads)
        ]

    def training(self, name: str) -> Graph:
        """The step: the forward ops, a loss of those that nobody reads, the backward ops.

        The backward op of a forward op reads what that read, and the gradients of what it wrote,
        one of each reader; it takes twice the time.
        """
        count = len(self.reads)
        readers: list[list[int]] = [[] for _ in range(count)]
        for i, reads in enumerate(self.reads):
            for r in dict.fromkeys(reads):
                readers[r].append(i)
        ends = [i for i in range(count) if not readers[i]]
        ops = self.forward_ops()
        ops.append(
            Op(
                "loss",
                "loss",
                time_s=1e-4,
                reads=tuple(f"x{i}" for i in self._storage(ends)),
                writes={f"d{i}:loss": self.size_bytes[i] for i in ends},
            )
        )
        for i in range(count - 1, -1, -1):
            gradients = [f"d{i}:{k}" for k in readers[i]] or [f"d{i}:loss"]
            reads = list(dict.fromkeys(self.reads[i]))
            ops.append(
                Op(
                    f"b{i}",
                    "backward",
                    time_s=2 * self.time_s[i],
                    reads=(*(f"x{r}" for r in self._storage(reads)), *gradients),
                    writes={f"d{r}:{i}": self.size_bytes[r] for r in reads},
                )
            )
        return Graph(name, tuple(ops))

    def _storage(self, reads: list[int]) -> list[int]:
        """The tensors read; with a view, also the tensor that it looks at."""
        found: dict[int, None] = {}
        for r in reads:
            found[r] = None
            while self.view[r]:
                (r,) = self.reads[r]
                found[r] = None
        return list(found)


def graph_generator(function: Callable[[int, int], Graph]) -> Callable[..., Graph]:
    """`function`, which refuses what is no number of ops, or no seed."""

    @wraps(function)
    def generator(num_ops: int, seed: int = 0) -> Graph:
        check_arguments(function, {"num_ops": num_ops, "seed": seed})
        if num_ops < 1 or seed < 0:
            raise SchedsimError(
                f"{shown(num_ops)} ops from seed {shown(seed)}",
                hint="at least one op, and a seed of 0 or more",
            )
        return function(num_ops, seed)

    return generator


def empty_network(num_ops: int, seed: int, least: int) -> tuple[SyntheticNetwork, Generator]:
    """A network without ops and its generator; fewer than `least` ops are refused."""
    if num_ops < least:
        raise SchedsimError(
            f"num_ops {num_ops} is too few for this graph", hint=f"at least {least}"
        )
    rng = np.random.default_rng(seed)
    return SyntheticNetwork(rng), rng
