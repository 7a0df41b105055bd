"""Sequences of runs and copies for the tests of offload planners, and what they run on."""

from __future__ import annotations

import numpy as np
from schedsim.algorithms.offload._linked_graph import link_graph

from schedsim import Graph, Schedule
from schedsim.plans.links import Link
from schedsim.plans.offloading import Offloading


def random_offloading(rng: np.random.Generator, *, whole: bool = False) -> Offloading:
    """Two directions, fast or slow, and host memory that is short or not."""
    links = []
    for _ in range(2):
        rate = (1, 2, 4, 8)[rng.integers(4)]
        latency = int(rng.integers(0, 3)) if rng.random() < 0.5 else 0
        links.append(Link(1 if whole else rate, latency))
    host_bytes = None if rng.random() < 0.5 else int(rng.integers(0, 60))
    return Offloading(links[0], links[1], host_bytes)


def random_tokens(rng: np.random.Generator, graph: Graph) -> list[str]:
    """A legal sequence: ops in order, with repeats and copies thrown in."""
    sizes = dict(graph.inputs)
    names: list[str] = []
    there, away = list(graph.inputs), []
    for op in graph.ops:
        for _ in range(int(rng.integers(0, 4))):
            kind = rng.random()
            if kind < 0.3 and names:
                again = names[int(rng.integers(len(names)))]
                if ":" not in again and not graph.ops[graph.op_index(again)].once:
                    names.append(again)
            elif kind < 0.7 and there:
                tensor = there[int(rng.integers(len(there)))]
                if sizes[tensor]:
                    names.append(f"d2h:{tensor}")
                    away.append(tensor)
            elif away:
                names.append(f"h2d:{away[int(rng.integers(len(away)))]}")
        names.append(op.name)
        sizes.update(op.writes)
        there += list(op.writes)
    return names


def linked_of(graph: Graph, budget_bytes: int, offloading: Offloading):
    """The graph as the kernels of the search read it."""
    return link_graph(graph, budget_bytes, offloading)


def tokens_of(graph: Graph, names: list[str]) -> np.ndarray:
    """`names` as the tokens of the kernels."""
    tensors = {name: i for i, name in enumerate(graph.arrays.tensor_names)}
    num_ops = graph.num_ops
    found = []
    for name in names:
        head, _, tensor = name.partition(":")
        if head == "d2h":
            found.append(num_ops + tensors[tensor])
        elif head == "h2d":
            found.append(num_ops + len(tensors) + tensors[tensor])
        else:
            found.append(graph.op_index(name))
    return np.array(found, dtype=np.int64)


def schedule_of(names: list[str]) -> Schedule:
    """A schedule by names."""
    return Schedule.from_names(names)
