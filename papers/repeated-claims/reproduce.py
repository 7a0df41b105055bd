"""Claims that are repeated without a source: under which settings our formulas give them."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, main
from _common import forward_share, num_forward_runs, store_all, unit_chain
from schedsim.algorithms.chains.frontier import ExactFrontier, exact_frontier
from schedsim.algorithms.chains.revolve import revolve_schedule
from schedsim.algorithms.chains.segment_schedule import equal_starts, segment_schedule

import schedsim
from schedsim import Chain, simulate
from schedsim.workloads import (
    PRESETS,
    TransformerConfig,
    WorkloadOptions,
    build_workload,
    layer_saved_bytes,
)

SOURCE = Source(
    title="Claims that are repeated without a source",
    what="four pairs of GB, 60-75 % for 30-40 %, 10 times for 20 %, one third more time",
)


@dataclass(frozen=True, slots=True)
class Pair:
    """GB without and with checkpointing, as repeated, and the setting that comes nearest."""

    name: str
    before_gb: float
    after_gb: float
    setting: str
    options: WorkloadOptions


PAIRS = (
    Pair(
        "ResNet-152",
        7.2,
        3.1,
        "fp32, 224 x 224, batch 36, momentum SGD",
        WorkloadOptions(preset="resnet-152", batch=36, static="auto", optimizer="sgd-momentum"),
    ),
    Pair(
        "ViT-B/16",
        12.5,
        5.8,
        "fp32, batch 64, Adam",
        WorkloadOptions(preset="vit-b16", batch=64, static="auto"),
    ),
    Pair(
        "GPT-2 774M",
        38,
        16,
        "fp16 with Adam, batch 4, sequence 1024, eager attention",
        WorkloadOptions(preset="gpt2-large", batch=4, static="auto"),
    ),
    Pair(
        "LLaMA-7B",
        56,
        24,
        "frozen bf16 weights, batch 4, sequence 2048, flash attention",
        WorkloadOptions(preset="llama2-7b", batch=4, seq=2048, static="auto", optimizer="none"),
    ),
)
BUDGET_NETWORKS = (("resnet-152", 32), ("vit-b16", 64), ("gpt2-large", 4), ("llama2-7b", 1))


@cache
def chain_of(options: WorkloadOptions) -> Chain:
    chain = build_workload(options).workload
    assert isinstance(chain, Chain)
    return chain


@cache
def frontier_of(options: WorkloadOptions) -> ExactFrontier:
    return exact_frontier(chain_of(options))


def overhead_at(options: WorkloadOptions, budget_bytes: float) -> float | None:
    """Percent of the optimal persistent plan within a budget; ``None`` where none fits."""
    curve = frontier_of(options)
    at = int(np.searchsorted(curve.budget_bytes, budget_bytes, side="right")) - 1
    if at < 0:
        return None
    return 100 * (float(curve.makespan_s[at]) / chain_of(options).store_all_s - 1)


def every_block(options: WorkloadOptions) -> tuple[float, float]:
    """GB and overhead in percent of a checkpoint every block, each replayed."""
    plan = schedsim.plan(chain_of(options), 10**13, "recompute_all")
    assert plan.peak_bytes is not None
    assert plan.overhead is not None
    return plan.peak_bytes / 1e9, 100 * plan.overhead


def claims(instances: Instances) -> Iterator[Claim]:
    for pair in PAIRS:
        chain = chain_of(pair.options)
        yield Claim(
            what=f"{pair.name}, {pair.setting}: everything kept",
            claimed=pair.before_gb,
            ours=store_all(chain).peak_bytes / 1e9,
            unit="GB",
            within=0.1 * pair.before_gb,
            seen="folklore",
        )
        size, overhead = every_block(pair.options)
        yield Claim(
            what=f"{pair.name}: a checkpoint every block",
            claimed=pair.after_gb,
            ours=size,
            unit="GB",
            within=0.1 * pair.after_gb,
            seen="folklore",
            why="Checkpointing every block gives less than is claimed; so the claim, if measured, "
            "is of a partial plan, or has an allocator's and a framework's memory in it."
            if size < 0.9 * pair.after_gb
            else "",
        )
        yield Claim(
            what=f"{pair.name}: optimal plan in {pair.after_gb:g} GB: overhead",
            claimed=40,
            ours=overhead_at(pair.options, 1e9 * pair.after_gb),
            unit="%",
            relation="at most",
            seen="folklore",
        )
    full = WorkloadOptions(preset="llama2-7b", batch=1, seq=2048, static="auto")
    yield Claim(
        what="LLaMA-7B trained whole with mixed-precision Adam: model state alone fits 56 GB",
        claimed=56,
        ours=chain_of(full).static_bytes / 1e9,
        unit="GB",
        relation="at most",
        seen="folklore",
        why="16 bytes a parameter before any activation: the claim cannot be of full training on "
        "one device.",
    )
    for preset, batch in BUDGET_NETWORKS:
        options = WorkloadOptions(preset=preset, batch=batch)
        whole = store_all(chain_of(options)).peak_bytes
        for less in (60, 75):
            ours = overhead_at(options, (1 - less / 100) * whole)
            yield Claim(
                what=f"{preset}, batch {batch}: {less} % less activation memory costs",
                claimed=30,
                ours=ours,
                unit="%",
                relation="at least",
                seen="folklore",
                why="An optimal plan by blocks costs less: the claim is of replaying everything, "
                "which saves more than 75 %."
                if ours is not None and ours < 30
                else "No plan by blocks fits: one block and the loss need more."
                if ours is None
                else "",
            )
    gpt3 = PRESETS["gpt3-175b"]
    assert isinstance(gpt3, TransformerConfig)
    sbh = gpt3.seq * gpt3.batch * gpt3.hidden
    yield Claim(
        what="GPT-3 layer, everything replayed: activation memory saved, 60 to 75 % claimed",
        claimed=75,
        ours=100 * (1 - 2 * sbh / layer_saved_bytes(gpt3)),
        unit="%",
        relation="at most",
        seen="folklore",
        why="Full replay saves 98 % of a layer here; 70 % is what selective replay saves, at 1 to "
        "3 % more flops (see korthikanti-2022).",
    )
    chain = unit_chain(100)
    for count in (2, 5, 10, 20):
        schedule = segment_schedule(chain, equal_starts(100, count))
        yield Claim(
            what=f"at most one third more time: 100 equal stages in {count} segments, b = 2 f",
            claimed=100 / 3,
            ours=100 * simulate(chain, schedule).overhead,
            unit="%",
            relation="at most",
            seen="folklore",
            check="Segments replay a stage at most once, by their definition.",
        )
    for slots in (5, 14):
        runs = num_forward_runs(revolve_schedule(100, slots), chain)
        yield Claim(
            what=f"at most one third more time: the same, binomial with {slots} states",
            claimed=100 / 3,
            ours=100 * (runs - 100) / 300,
            unit="%",
            relation="at most",
            seen="folklore",
            why="Below about sqrt(n) states stages are replayed more than once.",
        )
    for preset, batch in BUDGET_NETWORKS:
        options = WorkloadOptions(preset=preset, batch=batch)
        yield Claim(
            what=f"one third more time: f / (f + b) of {preset} by the roofline of an A100",
            claimed=100 / 3,
            ours=100 * forward_share(chain_of(options)),
            unit="%",
            within=2,
            seen="folklore",
            why="Ops that are bound by memory do not take twice the time backward."
            if preset == "gpt2-large"
            else "",
        )
    # Equal blocks, 1 unit kept whole or an eighth at a boundary, in sqrt(n) segments.
    yield Claim(
        what="10 times larger at 20 %: equal blocks, sqrt(n) segments: depth in the memory of 19",
        claimed=10,
        ours=deepest(19) / 19,
        relation="at least",
        seen="folklore",
    )
    blocks = eighths(19)
    count = round(math.sqrt(19))
    overhead = simulate(blocks, segment_schedule(blocks, equal_starts(19, count))).overhead
    yield Claim(
        what="10 times larger at 20 %: overhead of 19 blocks in sqrt(n) segments, b = 2 f",
        claimed=20,
        ours=100 * overhead,
        unit="%",
        within=2,
        seen="folklore",
        why="Ours is over the same network; a network ten times as deep takes ten times as long, "
        "and a third more.",
    )


@cache
def eighths(num: int) -> Chain:
    """Equal blocks that pass on an eighth of what they keep, b = 2 f."""
    return Chain.from_arrays(
        "blocks",
        1,
        forward_s=[1] * num,
        backward_s=[2] * num,
        output_bytes=[1] * num,
        saved_bytes=[8] * num,
    )


def deepest(num: int) -> int:
    """Most blocks that fit, in sqrt(n) segments, where `num` do with everything kept."""
    limit = store_all(eighths(num)).peak_bytes
    found = num
    for deeper in range(num, 40 * num):
        chain = eighths(deeper)
        schedule = segment_schedule(chain, equal_starts(deeper, round(math.sqrt(deeper))))
        if simulate(chain, schedule).peak_bytes <= limit:
            found = deeper
        elif deeper > 2 * found:
            break
    return found


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    for preset, batch in BUDGET_NETWORKS:
        options = WorkloadOptions(preset=preset, batch=batch)
        whole = store_all(chain_of(options)).peak_bytes
        curve = frontier_of(options)
        less = 100 * (1 - curve.budget_bytes / whole)
        more = 100 * (curve.makespan_s / chain_of(options).store_all_s - 1)
        axes.step(less, more, where="post", label=f"{preset}, optimal by blocks")
    axes.fill_between([60, 75], 30, 40, alpha=0.2, color="grey", label="claimed")
    axes.set(xlabel="activation memory less, %", ylabel="time more, %", xlim=(0, 100), ylim=(0, 60))
    axes.legend(fontsize=7, loc="upper left")


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)
