"""POET 2022: rematerialisation and paging together are never worse than either alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, main

from schedsim import Chain, Graph, Op, Plan
from schedsim.api import try_plan
from schedsim.plans.links import Link

SOURCE = Source(
    title="Patil et al. 2022, POET",
    what="joint plans against rematerialisation alone and paging alone, by time",
)
NUM_STEPS = 3
RATES = (1.0, 2.0, 4.0)


@cache
def step(seed: int) -> Graph:
    """A chain of uneven stages, as a graph."""
    rng = np.random.default_rng(seed)
    num = 12
    output = rng.integers(5, 20, num)
    return Chain.from_arrays(
        "uneven",
        10,
        forward_s=rng.integers(1, 6, num),
        backward_s=rng.integers(2, 12, num),
        output_bytes=output,
        saved_bytes=output + rng.integers(0, 30, num),
    ).graph


@cache
def plans(seed: int, rate: float) -> tuple[Plan, Plan, Plan]:
    """(rematerialisation, paging, both) at 60 % of the store-all peak, a link of `rate` B/s."""
    graph = step(seed)
    budget = try_plan(graph, 10**9, "store_all").peak_bytes
    assert budget is not None
    budget = 6 * budget // 10
    options = {"link": Link(rate), "max_moves": 4000, "num_threads": 1, "time_limit_s": 2.0}
    alone = try_plan(graph, budget, "local_search", max_moves=20_000, num_threads=1, time_limit_s=2)
    # Ops that may run once alone are never recomputed.
    once = replace(graph, ops=tuple(replace_once(op) for op in graph.ops))
    return (
        alone,
        try_plan(once, budget, "offload", **options),
        try_plan(graph, budget, "offload", **options),
    )


def replace_once(op: Op) -> Op:
    """`op`, which may not run again."""
    return replace(op, once=True)


def claims(instances: Instances) -> Iterator[Claim]:
    for rate in RATES:
        worse, better = 0, 0
        for seed in range(NUM_STEPS):
            remat, paging, both = plans(seed, rate)
            times = [p.makespan_s for p in (remat, paging) if p.makespan_s is not None]
            assert both.makespan_s is not None
            worse += any(both.makespan_s > time_s * (1 + 1e-9) for time_s in times)
            better += all(both.makespan_s < time_s * (1 - 1e-9) for time_s in times)
        yield Claim(
            what=f"steps of {NUM_STEPS} where both are worse than one alone, link of {rate:g} B/s",
            claimed=0,
            ours=worse,
            seen="abstract",
            check="The search of both begins from the better one, on chains of our own.",
        )
        yield Claim(
            what=f"steps of {NUM_STEPS} where both are better than either, chains of ours, "
            f"link of {rate:g} B/s",
            claimed=1,
            ours=better,
            relation="at least",
            seen="abstract",
            why="" if better else "The link carries all that it takes: paging alone does.",
        )
    yield Claim(
        what="ResNet-18 on a Cortex-A72 within 3,000,000 bytes and a slowdown of 7.6",
        claimed=7.6,
        ours=None,
        relation="at most",
        seen="code",
        why="Energies and times of their devices are not here; time alone is planned.",
    )


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    for k, name in enumerate(("rematerialisation", "paging", "both")):
        means = []
        for rate in RATES:
            found = [plans(seed, rate)[k] for seed in range(NUM_STEPS)]
            values = [100 * plan.overhead for plan in found if plan.overhead is not None]
            means.append(float(np.mean(values)) if values else float("nan"))
        axes.plot(RATES, means, "o-", label=name)
    axes.set(xlabel="link, bytes a second", ylabel="mean overhead, %")
    axes.legend()


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)
