"""Synthetic graphs for experiments: wide, nested, unrolled and lopsided ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..dataflow.graph import Graph
from ._synthetic_network import SyntheticNetwork, empty_network, graph_generator
from .synthetic_networks import SYNTHETIC_NETWORKS


@graph_generator
def layered(num_ops: int, seed: int = 0) -> Graph:
    """Layers of random width, forward only; an op reads up to six outputs, most of the one before.

    Parameters
    ----------
    num_ops
        At least 2.
    seed
        Of the generator that draws them.

    Examples
    --------
    >>> layered(100).num_ops
    100
    """
    rng = np.random.default_rng(seed)
    net = SyntheticNetwork(rng)
    width = max(2, round(num_ops**0.5 / 1.5))
    before, so_far = [net.op(time=0.01)], [0]
    while len(net.reads) < num_ops:
        count = min(int(rng.integers(width // 2, 2 * width)) + 1, num_ops - len(net.reads))
        layer = []
        for _ in range(count):
            fan_in = min(int(rng.geometric(0.4)), 6)
            source = [so_far if rng.random() < 0.1 else before for _ in range(fan_in)]
            reads = dict.fromkeys(int(rng.choice(one)) for one in source)
            layer.append(net.op(*reads, size=rng.exponential() + 0.1, time=rng.uniform(0, 1)))
        before = layer
        so_far += layer
    return Graph(f"layered-{num_ops}-{seed}", tuple(net.forward_ops()))


@graph_generator
def wide(num_ops: int, seed: int = 0) -> Graph:
    """Twenty layers, forward only: an op reads up to six outputs, of any layers before.

    Parameters
    ----------
    num_ops
        At least 2.
    seed
        Of the generator that draws them.

    Examples
    --------
    >>> wide(100).num_ops
    100
    """
    rng = np.random.default_rng(seed)
    net = SyntheticNetwork(rng)
    layers = [[net.op(time=0.01)]]
    while len(net.reads) < num_ops:
        count = min(int(rng.integers(num_ops // 40, num_ops // 13)) + 1, num_ops - len(net.reads))
        layer = []
        for _ in range(count):
            back = np.minimum(rng.geometric(0.5, rng.integers(1, 7)), len(layers))
            reads = dict.fromkeys(int(rng.choice(layers[-b])) for b in back)
            layer.append(net.op(*reads, size=rng.exponential() + 0.1, time=rng.uniform(0, 1)))
        layers.append(layer)
    return Graph(f"wide-{num_ops}-{seed}", tuple(net.forward_ops()))


@graph_generator
def branches(num_ops: int, seed: int = 0) -> Graph:
    """Modules of four to eight branches that are joined, as Inception's; a training step.

    Parameters
    ----------
    num_ops
        About so many ops, at least 30.
    seed
        Of the generator that draws them.

    Examples
    --------
    >>> branches(100).num_ops
    105
    """
    net, rng = empty_network(num_ops, seed, 30)
    last = net.op()
    while 2 * len(net.reads) + 1 < num_ops:
        ends = []
        for _ in range(int(rng.integers(4, 9))):
            at = last
            for _ in range(int(rng.integers(1, 5))):
                at = net.op(at, size=rng.uniform(0.2, 1.5), time=rng.uniform(0.3, 3.0))
            ends.append(at)
        last = net.op(*ends, size=2.0, time=0.1)
    return net.training(f"branches-{num_ops}-{seed}")


@graph_generator
def experts(num_ops: int, seed: int = 0) -> Graph:
    """Layers of attention and eight experts, each with a share of the tokens of its own.

    Parameters
    ----------
    num_ops
        About so many ops, at least 60.
    seed
        Of the generator that draws them.

    Examples
    --------
    >>> experts(120).num_ops
    151
    """
    net, rng = empty_network(num_ops, seed, 60)
    last = net.op()
    while 2 * len(net.reads) + 1 < num_ops:
        qkv = net.op(last, size=3.0, time=3.0)
        mixed = net.op(net.op(qkv, time=2.0), last)
        router = net.op(mixed, size=0.05, time=0.05)
        ends = [mixed]
        for share in rng.dirichlet(np.full(8, 2.0)):
            routed = net.op(mixed, router, size=2 * share, time=0.2 * share)
            wide = net.op(routed, size=8 * share, time=8 * share)
            ends.append(net.op(net.op(wide, size=8 * share, time=0.2 * share), size=2 * share))
        last = net.op(*ends, time=0.2)
    return net.training(f"experts-{num_ops}-{seed}")


@graph_generator
def nested_skips(num_ops: int, seed: int = 0) -> Graph:
    """U-nets behind each other, four levels deep, with a skip at each level.

    Parameters
    ----------
    num_ops
        About so many ops, at least 60.
    seed
        Of the generator that draws them.

    Examples
    --------
    >>> nested_skips(60).num_ops
    91
    """
    net, rng = empty_network(num_ops, seed, 60)
    last = net.op()
    while 2 * len(net.reads) + 1 < num_ops:
        skips = []
        for level in range(4):
            for _ in range(int(rng.integers(1, 4))):
                last = net.op(last, size=8 * 0.5**level, time=2.0)
            skips.append(last)
            last = net.op(last, size=8 * 0.5 ** (level + 1))
        for level, skip in zip(range(3, -1, -1), reversed(skips), strict=True):
            last = net.op(last, skip, size=8 * 0.5**level, time=2.0)
            for _ in range(int(rng.integers(1, 3))):
                last = net.op(last, size=8 * 0.5**level, time=2.0)
    return net.training(f"nested-skips-{num_ops}-{seed}")


@graph_generator
def recurrent(num_ops: int, seed: int = 0) -> Graph:
    """Two layers of a recurrent cell with a memory, unrolled over time.

    Parameters
    ----------
    num_ops
        About so many ops, at least 60.
    seed
        Of the generator that draws them.

    Examples
    --------
    >>> recurrent(100).num_ops
    119
    """
    net, _ = empty_network(num_ops, seed, 60)
    hidden, cell = [net.op(), net.op()], [net.op(), net.op()]
    while 2 * len(net.reads) + 1 < num_ops:
        below = net.op(size=0.5, time=0.1)
        for layer in range(2):
            gates = net.op(below, hidden[layer], size=4.0, time=4.0)
            opened = net.op(gates, size=4.0, time=0.2)
            cell[layer] = net.op(opened, cell[layer], time=0.2)
            hidden[layer] = net.op(opened, net.op(cell[layer], time=0.1), time=0.1)
            below = hidden[layer]
    return net.training(f"recurrent-{num_ops}-{seed}")


@graph_generator
def tree(num_ops: int, seed: int = 0) -> Graph:
    """A random binary tree, combined from its leaves to its root, depth first; a training step.

    Parameters
    ----------
    num_ops
        About so many ops, at least 30.
    seed
        Of the generator that draws the shape.

    Examples
    --------
    >>> tree(100).num_ops
    93
    """
    net, rng = empty_network(num_ops, seed, 30)

    def grown(num_leaves: int) -> int:
        if num_leaves == 1:
            return net.op(net.op(time=0.2), time=1.0)
        left = int(rng.integers(1, num_leaves))
        sides = grown(left), grown(num_leaves - left)
        return net.op(net.op(*sides, size=4.0, time=3.0), time=0.3)

    grown(max(2, num_ops // 8))
    return net.training(f"tree-{num_ops}-{seed}")


@graph_generator
def views(num_ops: int, seed: int = 0) -> Graph:
    """Residual blocks in which every other op is a view: no time, no bytes, another's storage.

    Parameters
    ----------
    num_ops
        About so many ops, at least 60.
    seed
        Of the generator that draws them.

    Examples
    --------
    >>> graph = views(60)
    >>> graph.num_ops, sum(op.time_s == 0 for op in graph) > 20
    (71, True)
    """
    net, rng = empty_network(num_ops, seed, 60)
    last = net.op()
    while 2 * len(net.reads) + 1 < num_ops:
        at = last
        for _ in range(int(rng.integers(2, 5))):
            at = net.op(net.op(at, view=True), size=rng.uniform(0.5, 4.0), time=rng.uniform(0.2, 3))
            at = net.op(at, view=True)
        last = net.op(last, at, time=0.1)
    return net.training(f"views-{num_ops}-{seed}")


@graph_generator
def one_huge_op(num_ops: int, seed: int = 0) -> Graph:
    """A line of residual blocks of drawn sizes, and one op that makes a third of all bytes.

    Parameters
    ----------
    num_ops
        About so many ops, at least 30.
    seed
        Of the generator that draws them.

    Examples
    --------
    >>> one_huge_op(60).num_ops
    67
    """
    net, rng = empty_network(num_ops, seed, 30)
    last = net.op()
    while 2 * len(net.reads) + 1 < num_ops:
        at = net.op(last, size=rng.uniform(1, 4), time=2.0)
        at = net.op(at, size=rng.uniform(1, 4), time=0.2)
        last = net.op(last, net.op(at, time=2.0), time=0.1)
    huge = int(rng.integers(len(net.size_bytes) // 4, 3 * len(net.size_bytes) // 4))
    net.size_bytes[huge] = sum(net.size_bytes) // 2
    return net.training(f"one-huge-op-{num_ops}-{seed}")


SYNTHETIC_GRAPHS: dict[str, Callable[[int, int], Graph]] = {
    "layered": layered,
    "wide": wide,
    "branches": branches,
    "experts": experts,
    "nested-skips": nested_skips,
    "recurrent": recurrent,
    "tree": tree,
    "views": views,
    "one-huge-op": one_huge_op,
    **SYNTHETIC_NETWORKS,
}
"""Generators by name; each takes about the number of ops and a seed."""
