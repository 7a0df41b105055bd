"""Feng & Huang 2021: stored checkpoints plus the largest segment, solved exactly on chains."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, main
from _common import store_all
from schedsim.algorithms.chains.chen import greedy_starts
from schedsim.algorithms.chains.segment_schedule import equal_starts, segment_schedule

from schedsim import Chain, simulate
from schedsim.workloads import WorkloadOptions, build_workload

SOURCE = Source(
    title="Feng & Huang 2021, Optimal gradient checkpoint search",
    what="their objective by shortest paths; what it saves and costs on six networks",
)
NETWORKS = {
    "resnet-50": 64, "resnet-101": 64, "resnet-152": 64, "vit-b16": 64, "gpt2-medium": 8,
    "gpt2-xl": 8,
}  # fmt: skip


def objective(chain: Chain, starts: Sequence[int]) -> int:
    """Bytes of the stored checkpoints plus those of the largest segment, bundles summed."""
    stored = sum(chain.stages[start - 1].output_bytes for start in starts[1:])
    bounds = [*starts, chain.num_stages]
    segments = (
        sum(stage.saved_bytes for stage in chain.stages[first:end])
        for first, end in itertools.pairwise(bounds)
    )
    return stored + max(segments)


def optimal_starts(chain: Chain) -> list[int]:
    """First stages of the segments that minimise `objective`.

    For each size that a segment can have, as a limit on all of them, the cheapest path over the
    boundaries whose segments are within it; O(L) shortest paths of O(L^2) where limits are those
    of L^2 segments, of which only those better than the best so far are looked at.
    """
    num = chain.num_stages
    sums = np.concatenate(([0], np.cumsum([stage.saved_bytes for stage in chain.stages])))
    cost = np.array([0, *(stage.output_bytes for stage in chain.stages)], dtype=np.int64)
    cost[num] = 0
    lengths = {int(sums[j] - sums[i]) for i in range(num) for j in range(i + 1, num + 1)}
    best, found = 2**62, [0]
    for limit in sorted(lengths):
        if limit >= best:
            break
        least = np.full(num + 1, 2**61, dtype=np.int64)
        before = np.zeros(num + 1, dtype=np.int64)
        least[0] = 0
        for j in range(1, num + 1):
            first = int(np.searchsorted(sums, sums[j] - limit))
            if first < j:
                i = first + int(np.argmin(least[first:j]))
                least[j], before[j] = least[i] + cost[j], i
        if least[num] < 2**61 and least[num] + limit < best:
            best = int(least[num]) + limit
            found = [num]
            while found[-1]:
                found.append(int(before[found[-1]]))
    return sorted(found)[:-1]


def random_chain(rng: np.random.Generator, num: int) -> Chain:
    """Uneven sizes."""
    output = rng.integers(1, 30, num)
    return Chain.from_arrays(
        "random",
        0,
        forward_s=[1] * num,
        backward_s=[2] * num,
        output_bytes=output,
        saved_bytes=output + rng.integers(0, 60, num),
    )


@cache
def network(preset: str) -> Chain:
    """Activations alone."""
    chain = build_workload(WorkloadOptions(preset=preset, batch=NETWORKS[preset])).workload
    assert isinstance(chain, Chain)
    return chain


@cache
def saved_and_added(preset: str) -> tuple[float, float]:
    """Percent of the peak saved, and of the time added, by the best segments."""
    chain = network(preset)
    replay = simulate(chain, segment_schedule(chain, optimal_starts(chain)))
    whole = store_all(chain)
    return 100 * (1 - replay.peak_bytes / whole.peak_bytes), 100 * replay.overhead


def claims(instances: Instances) -> Iterator[Claim]:
    rng = np.random.default_rng(0)
    chains = [random_chain(rng, int(rng.integers(2, 10))) for _ in range(200)]
    optimal = 0
    for chain in chains:
        inner = range(1, chain.num_stages)
        every = (
            objective(chain, [0, *some])
            for size in range(chain.num_stages)
            for some in itertools.combinations(inner, size)
        )
        optimal += objective(chain, optimal_starts(chain)) == min(every)
    yield Claim(
        what="random chains of which it finds the optimum, of 200 enumerated",
        claimed=200,
        ours=optimal,
        seen="abstract",
    )
    beaten = 0
    for chain in [random_chain(rng, 40) for _ in range(20)]:
        ours = objective(chain, optimal_starts(chain))
        others = [equal_starts(40, k) for k in range(1, 41)]
        others += [greedy_starts(chain, b) for b in range(0, 2000, 10)]
        beaten += any(objective(chain, starts) < ours for starts in others)
    yield Claim(
        what="random chains on which Chen's segments (any k, any threshold) are better, of 20",
        claimed=0,
        ours=beaten,
        seen="formula",
    )
    saved = {preset: saved_and_added(preset) for preset in NETWORKS}
    yield Claim(
        what="most of the peak that it saves on six networks",
        claimed=80,
        ours=max(percent for percent, _ in saved.values()),
        unit="%",
        within=5,
        seen="abstract",
        why="Peaks of activations; a measured peak has weights and workspaces in it.",
    )
    for what, percent, relation in (
        ("least", min(percent for _, percent in saved.values()), "at least"),
        ("most", max(percent for _, percent in saved.values()), "at most"),
    ):
        yield Claim(
            what=f"{what} time that it adds on them (about 30 to 50 % is claimed)",
            claimed=30 if what == "least" else 50,
            ours=percent,
            unit="%",
            within=3,
            relation=relation,  # type: ignore[arg-type]
            seen="abstract",
            why="One replay of all but the last segment costs less than f / (f + b)."
            if percent < 27
            else "",
        )


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    for preset in NETWORKS:
        saved, added = saved_and_added(preset)
        axes.plot(saved, added, "o")
        axes.annotate(preset, (saved, added), xytext=(4, 3), textcoords="offset points", fontsize=8)
    axes.axhspan(30, 50, alpha=0.1, label="claimed time")
    axes.axvline(80, ls="--", color="grey", label="claimed saving, up to")
    axes.set(xlabel="peak saved, %", ylabel="time added, %", xlim=(60, 101), ylim=(20, 55))
    axes.legend()


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)
