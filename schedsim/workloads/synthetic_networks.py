"""Synthetic graphs after networks of the field, and after graphs of the theory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..dataflow.graph import Graph
from ._synthetic_network import SyntheticNetwork, empty_network, graph_generator


@graph_generator
def attention_unet(num_ops: int, seed: int = 0) -> Graph:
    """U-nets of residual blocks with a time embedding, and attention at their lower levels.

    Parameters
    ----------
    num_ops
        About so many ops, at least 130.
    seed
        Of the generator that draws sizes and times.

    Examples
    --------
    >>> attention_unet(130).num_ops
    151
    """
    net, _ = empty_network(num_ops, seed, 130)
    last, embedding = net.op(size=8.0), net.op(size=0.1)

    def residual(at: int, size: float) -> int:
        inner = net.op(net.op(at, size=size, time=0.2), size=size, time=2.0)
        inner = net.op(inner, embedding, size=size, time=0.2)
        return net.op(net.op(inner, size=size, time=2.0), at, size=size, time=0.1)

    while 2 * len(net.reads) + 1 < num_ops:
        skips = []
        for level in range(3):
            size = 8 * 0.5**level
            last = residual(last, size)
            if level >= 1:
                last = _attention(net, last, last, size=size, scores=size / 2)
            skips.append(last)
            last = net.op(last, size=size / 2)
        last = residual(last, 1.0)
        for level in range(2, -1, -1):
            size = 8 * 0.5**level
            last = residual(net.op(last, skips.pop(), size=2 * size, time=0.2), size)
            if level >= 1:
                last = _attention(net, last, last, size=size, scores=size / 2)
    return net.training(f"attention-unet-{num_ops}-{seed}")


@graph_generator
def encoder_decoder(num_ops: int, seed: int = 0) -> Graph:
    """A transformer whose decoder layers all read what the encoder made of its input.

    Parameters
    ----------
    num_ops
        About so many ops, at least 70.
    seed
        Of the generator that draws sizes and times.

    Examples
    --------
    >>> encoder_decoder(100).num_ops
    73
    """
    net, _ = empty_network(num_ops, seed, 70)
    num_layers = max(1, round(num_ops / 2 / 36))

    def feed_forward(at: int) -> int:
        wide = net.op(net.op(at, time=0.2), size=4.0, time=4.0)
        return net.op(net.op(net.op(wide, size=4.0, time=0.3), time=4.0), at, time=0.1)

    encoded = net.op()
    for _ in range(num_layers):
        encoded = feed_forward(_attention(net, encoded, encoded, scores=4.0))
    last = net.op()
    for _ in range(num_layers):
        last = _attention(net, last, last, scores=4.0)
        last = feed_forward(_attention(net, last, encoded, scores=4.0))
    return net.training(f"encoder-decoder-{num_ops}-{seed}")


@graph_generator
def message_passing(num_ops: int, seed: int = 0) -> Graph:
    """Twelve parts of a graph that send each other messages along drawn edges, layer by layer.

    Parameters
    ----------
    num_ops
        About so many ops, at least 100.
    seed
        Of the generator that draws the edges.

    Examples
    --------
    >>> message_passing(100).num_ops
    169
    """
    net, rng = empty_network(num_ops, seed, 100)
    num_parts = 12
    edges = [[j for j in range(num_parts) if rng.random() < 0.3] for _ in range(num_parts)]
    states = [net.op(size=rng.uniform(0.5, 2.0)) for _ in range(num_parts)]
    while 2 * len(net.reads) + 1 < num_ops:
        messages = [net.op(state, size=rng.uniform(0.5, 2.0)) for state in states]
        for part, senders in enumerate(edges):
            senders = senders or [part]
            collected = net.op(*(messages[sender] for sender in senders), time=0.3)
            states[part] = net.op(collected, states[part], size=1.5, time=2.0)
    return net.training(f"message-passing-{num_ops}-{seed}")


@graph_generator
def shared_experts(num_ops: int, seed: int = 0) -> Graph:
    """Layers of gated experts of very uneven shares, beside one expert that all tokens take.

    Parameters
    ----------
    num_ops
        About so many ops, at least 70.
    seed
        Of the generator that draws the shares.

    Examples
    --------
    >>> shared_experts(70).num_ops
    75
    """
    net, rng = empty_network(num_ops, seed, 70)
    last = net.op()
    while 2 * len(net.reads) + 1 < num_ops:
        mixed = net.op(net.op(last, size=3.0, time=3.0), last, time=2.0)
        router = net.op(mixed, size=0.05, time=0.05)
        ends = [mixed, net.op(net.op(mixed, size=4.0, time=4.0), time=4.0)]
        for share in rng.dirichlet(np.full(6, 0.7)) + 0.01:
            routed = net.op(mixed, router, size=2 * share, time=0.1 * share)
            up, gate = (net.op(routed, size=8 * share, time=8 * share) for _ in range(2))
            gated = net.op(up, gate, size=8 * share, time=0.1 * share)
            ends.append(net.op(gated, router, size=2 * share, time=8 * share))
        last = net.op(*ends, time=0.2)
    return net.training(f"shared-experts-{num_ops}-{seed}")


@graph_generator
def dense(num_ops: int, seed: int = 0) -> Graph:
    """Blocks of twelve layers, each of which reads the outputs of all layers of its block before.

    Parameters
    ----------
    num_ops
        About so many ops, at least 80.
    seed
        Of the generator that draws sizes and times.

    Examples
    --------
    >>> dense(80).num_ops
    155
    """
    net, _ = empty_network(num_ops, seed, 80)
    last = net.op(size=4.0)
    while 2 * len(net.reads) + 1 < num_ops:
        features = [last]
        for _ in range(12):
            joined = net.op(*features, size=0.5 * len(features) + 1, time=0.2)
            narrow = net.op(joined, size=2.0, time=0.5 * len(features))
            features.append(net.op(narrow, size=0.5, time=2.0))
        last = net.op(net.op(*features, size=6.0, time=0.3), size=2.0, time=2.0)
    return net.training(f"dense-{num_ops}-{seed}")


@graph_generator
def bidirectional(num_ops: int, seed: int = 0) -> Graph:
    """Three recurrent layers, each unrolled forwards and backwards over the one below.

    Parameters
    ----------
    num_ops
        About so many ops, at least 130.
    seed
        Of the generator that draws sizes and times.

    Examples
    --------
    >>> bidirectional(130).num_ops
    141
    """
    net, _ = empty_network(num_ops, seed, 130)
    below = [net.op(size=0.5) for _ in range(max(3, round(num_ops / 2 / 16)))]
    for _ in range(3):
        outputs = []
        for steps in (below, below[::-1]):
            state, states = net.op(), []
            for step in steps:
                state = net.op(net.op(step, state, size=3.0, time=3.0), state, time=0.3)
                states.append(state)
            outputs.append(states if steps is below else states[::-1])
        below = [net.op(*both, size=2.0, time=0.1) for both in zip(*outputs, strict=True)]
    return net.training(f"bidirectional-{num_ops}-{seed}")


@graph_generator
def butterfly(num_ops: int, seed: int = 0) -> Graph:
    """Exchanges of a fast Fourier transform, a block after the other, sixteen values wide.

    Parameters
    ----------
    num_ops
        About so many ops, at least 130.
    seed
        Of the generator that draws sizes and times.

    Examples
    --------
    >>> butterfly(130).num_ops
    161
    """
    net, rng = empty_network(num_ops, seed, 130)
    row, level = [net.op() for _ in range(16)], 0
    while 2 * len(net.reads) + 1 < num_ops:
        row = [
            net.op(one, row[i ^ 1 << level], size=rng.uniform(0.5, 1.5), time=rng.uniform(0.5, 2))
            for i, one in enumerate(row)
        ]
        level = (level + 1) % 4
    return net.training(f"butterfly-{num_ops}-{seed}")


@graph_generator
def series_parallel(num_ops: int, seed: int = 0) -> Graph:
    """Drawn compositions of ops in series and in parallel, thirty at a time, one after the other.

    Parameters
    ----------
    num_ops
        About so many ops, at least 130.
    seed
        Of the generator that draws the compositions.

    Examples
    --------
    >>> 130 <= series_parallel(130).num_ops <= 250
    True
    """
    net, rng = empty_network(num_ops, seed, 130)

    def composed(at: int, size: int) -> int:
        if size <= 1:
            return net.op(at, size=rng.exponential() + 0.1, time=rng.exponential() + 0.05)
        if rng.random() < 0.5:
            first = int(rng.integers(1, size))
            return composed(composed(at, first), size - first)
        shares = np.maximum(1, rng.multinomial(size - 1, np.full(3, 1 / 3)))
        ends = [composed(at, int(share)) for share in shares]
        return net.op(*ends, size=rng.exponential() + 0.1, time=0.2)

    last = net.op()
    while 2 * len(net.reads) + 1 < num_ops:
        last = composed(last, 30)
    return net.training(f"series-parallel-{num_ops}-{seed}")


def _attention(
    net: SyntheticNetwork, at: int, memory: int, *, size: float = 1.0, scores: float
) -> int:
    """Attention of `at` to `memory`, with its residual connection; the op that ends it."""
    query = net.op(at, size=size)
    key, value = (net.op(memory, size=size) for _ in range(2))
    weights = net.op(net.op(query, key, size=scores), size=scores, time=0.3)
    return net.op(net.op(net.op(weights, value, size=size), size=size), at, size=size, time=0.1)


SYNTHETIC_NETWORKS: dict[str, Callable[[int, int], Graph]] = {
    "attention-unet": attention_unet,
    "encoder-decoder": encoder_decoder,
    "message-passing": message_passing,
    "shared-experts": shared_experts,
    "dense": dense,
    "bidirectional": bidirectional,
    "butterfly": butterfly,
    "series-parallel": series_parallel,
}
"""Generators by name; each takes about the number of ops and a seed."""
