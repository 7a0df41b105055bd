"""Chains whose repeated runs are few enough to try all changes of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import schedsim


@dataclass
class Row:
    """A schedule and its time."""

    names: tuple[str, ...]
    makespan_s: float


def random_chain(seed, num_stages=5):
    """Stages of unequal sizes and times."""
    rng = np.random.default_rng(seed)

    def draw(most):
        return rng.integers(1, most, num_stages).tolist()

    return schedsim.Chain.from_arrays(
        "random", 4, forward_s=draw(9), backward_s=draw(9), output_bytes=draw(20),
        saved_bytes=[20 + size for size in draw(40)],
    )  # fmt: skip


def repeats_of(names):
    """Pairs of an op and the number of a repeated run."""
    counts: dict[str, int] = {}
    found = []
    for name in names:
        if counts.setdefault(name, 0):
            found.append((name, counts[name]))
        counts[name] += 1
    return found
