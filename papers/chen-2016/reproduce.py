"""Chen et al. 2016: the sqrt(n) law, its time, the recursion, a thousand-layer ResNet."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, main
from _common import num_forward_runs, store_all, unit_chain
from schedsim.algorithms.chains.bisection import bisection_schedule
from schedsim.algorithms.chains.segment_schedule import equal_starts, segment_schedule

import schedsim
from schedsim import Chain, simulate
from schedsim.workloads import Roofline, get_device
from schedsim.workloads.ops import to_chain
from schedsim.workloads.resnet import ResNetConfig, resnet_model

SOURCE = Source(
    title="Chen, Xu, Zhang, Guestrin 2016, Training deep nets with sublinear memory cost",
    what="the sqrt(n) law, one extra forward, the recursion, a 1000-layer ResNet",
    fast=True,
)


@cache
def least_segment_peak(num_stages: int) -> int:
    """Least simulated peak over all numbers of equal segments of a unit chain, in bytes.

    Two bytes of it are the gradients at both ends of the stage that runs backward, which the paper
    does not count.
    """
    chain = unit_chain(num_stages)
    around = range(1, min(num_stages, 4 * math.isqrt(num_stages)) + 1)
    schedules = (segment_schedule(chain, equal_starts(num_stages, k)) for k in around)
    return min(simulate(chain, schedule).peak_bytes for schedule in schedules)


@cache
def thousand_layers() -> Chain:
    """ResNet-152 with 283 more blocks like ``layer3.1``: 1001 layers, batch 32, fp32."""
    model = resnet_model(ResNetConfig(depth=152, batch=32))
    place = [stage.name for stage in model.stages].index("layer3.1")
    more = tuple(replace(model.stages[place], name=f"more{i}") for i in range(283))
    stages = model.stages[:place] + more + model.stages[place:]
    longer = replace(model, name="resnet-1001", stages=stages)
    return to_chain(longer, Roofline(get_device("a100-80gb")))


@cache
def of_thousand_layers() -> tuple[float, float, float, float]:
    """GB of store-all; GB and overhead in percent of sqrt(L) segments; least GB of algorithm 3."""
    chain = thousand_layers()
    whole = store_all(chain).peak_bytes
    plan = schedsim.plan(chain, whole, "chen_sqrt")
    greedy = schedsim.plan(chain, whole, "chen_greedy").min_feasible_bytes
    assert plan.peak_bytes is not None
    assert plan.overhead is not None
    assert greedy is not None
    return whole / 1e9, plan.peak_bytes / 1e9, 100 * plan.overhead, greedy / 1e9


def segment_overhead(num_stages: int, num_segments: int) -> float:
    """Percent of the step's time that equal segments add at b = 2 f."""
    chain = unit_chain(num_stages)
    schedule = segment_schedule(chain, equal_starts(num_stages, num_segments))
    return 100 * simulate(chain, schedule).overhead


def claims(instances: Instances) -> Iterator[Claim]:
    for num, least in ((16, 8), (25, 10), (64, 16), (100, 20), (1000, 64), (1024, 64)):
        yield Claim(
            what=f"least k + n/k, n = {num}, as a simulated peak less two gradients",
            claimed=least,
            ours=least_segment_peak(num) - 2,
            seen="formula",
        )
    for num, forwards in ((16, 48), (64, 256), (256, 1280), (1000, 5932), (1024, 6144)):
        chain = unit_chain(num)
        schedule = bisection_schedule(chain, num.bit_length())
        yield Claim(
            what=f"forwards of the recursion with k = 1, n = {num}",
            claimed=forwards,
            ours=num_forward_runs(schedule, chain),
            seen="formula",
        )
    chain = unit_chain(1024)
    peak = simulate(chain, bisection_schedule(chain, 11)).peak_bytes
    yield Claim(
        what="memory of the recursion with k = 1, n = 1024, a constant more than log2 n",
        claimed=math.log2(1024),
        ours=peak,
        within=4,
        seen="formula",
        check="The constant was taken from our own count.",
        why="the chain's input, the bundle at work and the two gradients are ours",
    )
    yield Claim(
        what="extra time, 1000 layers in sqrt(n) segments, b = 2 f",
        claimed=30,
        ours=segment_overhead(1000, 32),
        unit="%",
        within=3,
        seen="text",
    )
    yield Claim(
        what="extra time at the most: one forward, n = 100, k = 10, b = 2 f",
        claimed=100 / 3,
        ours=segment_overhead(100, 10),
        unit="%",
        relation="at most",
        seen="text",
    )
    whole, sqrt_gb, sqrt_percent, greedy_gb = of_thousand_layers()
    why = (
        "Their network is not printed; ours is ResNet-152 with its longest group lengthened. "
        "The 48 GB are not measured (the caption says that missing points ran out of memory)."
    )
    yield Claim(
        what="ResNet of 1000 layers, batch 32, feature maps, nothing recomputed",
        claimed=48,
        ours=whole,
        unit="GB",
        within=2.4,
        seen="abstract",
        why=why,
    )
    yield Claim(
        what="the same, sqrt(n) segments",
        claimed=7,
        ours=sqrt_gb,
        unit="GB",
        relation="at most",
        seen="text",
    )
    yield Claim(
        what="the same, extra time of a roofline",
        claimed=30,
        ours=sqrt_percent,
        unit="%",
        within=3,
        seen="text",
    )
    yield Claim(
        what="the same, ratio of memory without and with",
        claimed=48 / 7,
        ours=whole / sqrt_gb,
        within=0.7,
        seen="abstract",
        why="Algorithm 3 reaches " + f"{greedy_gb:.1f} GB" + "; a measured peak holds more "
        "than feature maps, the least that is needed with and without alike.",
    )
    yield Claim(
        what="LSTM of 4 layers, unrolled 64 times: saving over their optimised plan",
        claimed=4,
        ours=None,
        relation="at least",
        seen="text",
        why="Their optimised plan is that of MXNet's in-place and sharing rules, not described.",
    )


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    sizes = [16, 25, 36, 64, 100, 196, 400, 1000]
    peaks = [least_segment_peak(num) for num in sizes]
    axes.loglog(sizes, [num + 2 for num in sizes], label="everything kept")
    axes.loglog(sizes, peaks, "o-", label="least over segments, simulated")
    axes.loglog(sizes, [2 * math.sqrt(num) for num in sizes], "--", label="2 sqrt(n)")
    halved = []
    for num in sizes:
        chain = unit_chain(num)
        halved.append(simulate(chain, bisection_schedule(chain, num.bit_length())).peak_bytes)
    axes.loglog(sizes, halved, "s-", label="recursion, k = 1")
    axes.set(xlabel="stages", ylabel="peak, in bytes of one stage")
    axes.legend()


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)
