"""Siskind & Pearlmutter 2018: bisection, and the binomial choice of the split."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, main
from _common import num_forward_runs, unit_chain
from schedsim.algorithms.chains.bisection import bisection_schedule
from schedsim.algorithms.chains.revolve import revolve_schedule

from schedsim import simulate

SOURCE = Source(
    title="Siskind & Pearlmutter 2018, Divide-and-conquer checkpointing",
    what="time and live snapshots of bisection; the binomial split",
    fast=True,
)
BUNDLE = 10_000


def snapshots(num: int) -> int:
    """Most states alive at once under full bisection, the initial one not counted."""
    chain = unit_chain(num, saved_bytes=BUNDLE)
    peak = simulate(chain, bisection_schedule(chain, num.bit_length())).peak_bytes
    return peak - BUNDLE - 2 - 1  # two gradients; the chain's input


def claims(instances: Instances) -> Iterator[Claim]:
    for power in (4, 6, 8, 10):
        num = 2**power
        chain = unit_chain(num)
        runs = num_forward_runs(bisection_schedule(chain, power), chain)
        yield Claim(
            what=f"forwards of bisection, n (1 + k / 2), n = {num}",
            claimed=num * (1 + power / 2),
            ours=runs,
            seen="formula",
        )
        yield Claim(
            what=f"live snapshots, k = log2 n, n = {num}",
            claimed=power,
            ours=snapshots(num),
            seen="formula",
        )
    for num, slots, forwards in ((32, 5, 68), (64, 8, 137), (100, 10, 222)):
        yield Claim(
            what=f"forwards with the binomial split, n = {num}, s = {slots}",
            claimed=forwards + num,
            ours=num_forward_runs(revolve_schedule(num, slots), unit_chain(num)),
            seen="formula",
        )
    grown = snapshots(1024) / snapshots(64)
    yield Claim(
        what="growth of storage when n grows 16 times: sublinear",
        claimed=16,
        ours=grown,
        relation="at most",
        seen="abstract",
    )


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    sizes = [2**power for power in range(2, 11)]
    axes.semilogx(sizes, [snapshots(num) for num in sizes], "o-", label="snapshots", base=2)
    chains = [unit_chain(num) for num in sizes]
    runs = [num_forward_runs(bisection_schedule(c, 11), c) / c.num_stages for c in chains]
    axes.semilogx(sizes, runs, "s-", label="forwards per step", base=2)
    axes.set(xlabel="steps n")
    axes.legend()


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)
