"""GPipe 2019: sizes of the models of table 1, and what the bubble explains of table 2."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, main

from schedsim import Chain
from schedsim.pipelines import PipelineRun, make_order, make_pipeline, run_pipeline, stage_input
from schedsim.workloads import TransformerConfig

SOURCE = Source(
    title="Huang et al. 2019, GPipe",
    what="parameter counts, ratios and throughput of a pipeline by its bubble",
    fast=True,
)
# Layers of the Transformer -> parameters, and half the last digit printed.
PARAMETERS = {
    3: (282.2e6, 0.05e6), 13: (785.8e6, 0.05e6), 103: (5.3e9, 0.05e9), 415: (21.0e9, 0.05e9),
    1663: (83.9e9, 0.05e9),
}  # fmt: skip
AMOEBANET = (82e6, 1.8e9)  # parameters, on one accelerator and at the largest
# Partitions -> throughput of the Transformer over that of K = 2, M = 1, for M = 1, 4, 32.
TABLE_2 = {2: (1, 1.7, 1.8), 4: (1.07, 3.2, 3.4), 8: (1.3, 4.8, 6.3)}
MANY = "Printed is more than equal stages and a bubble allow; what else grew with M is not said."
WHY = {
    (2, 4): MANY,
    (4, 4): MANY,
    (8, 4): MANY,
    (8, 1): "Replay hidden in the wait gains 12 %, not 30 %.",
}


def parameters(layers: int) -> int:
    """Parameters of the Transformer with width 2048 and a vocabulary of 32,000."""
    return TransformerConfig(
        name="transformer",
        num_layers=layers,
        hidden=2048,
        num_heads=32,
        seq=1024,
        ffn=8192,
        vocab=32_000,
        tied=False,
        embedding=True,
        head=True,
    ).num_parameters


def bubble_alone(partitions: int, micro_batches: int) -> float:
    """K M / (M + K - 1): devices times the share of time that they are not in the bubble."""
    return partitions * micro_batches / (micro_batches + partitions - 1)


@cache
def pipeline(partitions: int, micro_batches: int) -> PipelineRun:
    """A batch in so many micro-batches, only inputs of partitions kept, replay in the wait.

    Eight equal layers with f = 1 and b = 2 in all; a layer keeps 16 times the samples it is given
    and passes on as many as those. Messages take no time.
    """
    ones = [1.0] * 8
    samples = 32 // micro_batches
    chain = Chain.from_arrays(
        "layers",
        samples,
        forward_s=[x / 8 / micro_batches for x in ones],
        backward_s=[2 * x / 8 / micro_batches for x in ones],
        output_bytes=[samples] * 8,
        saved_bytes=[16 * samples] * 8,
    )
    plans = [stage_input(8 // partitions)] * partitions
    order = make_order("gpipe", partitions, micro_batches)
    return run_pipeline(make_pipeline(chain, partitions, micro_batches), order, plans)


def simulated(partitions: int, micro_batches: int) -> float:
    """Throughput over that of K = 2, M = 1."""
    return pipeline(2, 1).makespan_s / pipeline(partitions, micro_batches).makespan_s


def claims(instances: Instances) -> Iterator[Claim]:
    for layers, (count, rounding) in PARAMETERS.items():
        yield Claim(
            what=f"table 1: parameters of the Transformer with {layers} layers",
            claimed=count,
            ours=parameters(layers),
            within=rounding,
            seen="text",
            why="Positions and the exact vocabulary are not printed." if layers == 13 else "",
        )
    yield Claim(
        what="table 1, Transformer: largest over what one accelerator holds without",
        claimed=298,
        ours=parameters(1663) / parameters(3),
        within=1.5,
        seen="text",
    )
    yield Claim(
        what="table 1, Transformer: larger by replay alone, on one accelerator",
        claimed=2.7,
        ours=parameters(13) / parameters(3),
        within=0.1,
        seen="text",
    )
    yield Claim(
        what="table 1, AmoebaNet: 1.8 B over 82 M parameters",
        claimed=25,
        ours=AMOEBANET[1] / AMOEBANET[0],
        within=0.5,
        seen="text",
        why="The printed counts give 21 to 23.",
    )
    for partitions, printed in TABLE_2.items():
        for micro_batches, value in zip((1, 4, 32), printed, strict=True):
            if (partitions, micro_batches) == (2, 1):
                continue  # what the others are divided by
            yield Claim(
                what=f"table 2, Transformer, K = {partitions}, M = {micro_batches}, simulated",
                claimed=value,
                ours=simulated(partitions, micro_batches),
                within=0.08 * value,
                seen="text",
                why=WHY.get((partitions, micro_batches), ""),
            )
        yield Claim(
            what=f"K = {partitions}, M = 32: K M / (M + K - 1), by the bubble alone",
            claimed=printed[2],
            ours=bubble_alone(partitions, 32) / bubble_alone(2, 1),
            within=0.08 * printed[2],
            seen="text",
        )
    for partitions, micro_batches in ((4, 16), (8, 32)):
        run = pipeline(partitions, micro_batches)
        work_s = 1 + 1 + 2  # forward, replay, backward, on all devices together
        yield Claim(
            what=f"K = {partitions}, M = {micro_batches}: share of a step in the bubble, at most "
            "(K - 1) / (M + K - 1)",
            claimed=(partitions - 1) / (micro_batches + partitions - 1),
            ours=1 - work_s / partitions / run.makespan_s,
            relation="at most",
            seen="text",
            why="Replay runs in the wait for gradients, as the paper says.",
        )
        most = 32 + 8 / partitions * 16 * 32 / micro_batches
        middle = run.devices[partitions // 2].peak_bytes
        yield Claim(
            what=f"K = {partitions}, M = {micro_batches}: activations of a device over "
            "N + (L / K) (N / M), bundles counted",
            claimed=1,
            ours=middle / most,
            within=0.1,
            seen="text",
            why="" if abs(middle / most - 1) <= 0.1 else "Gradients and outputs at work are ours.",
        )
    yield Claim(
        what="table 1: activations of AmoebaNet on one accelerator with replay",
        claimed=3.46,
        ours=None,
        unit="GB",
        seen="text",
        why="The sizes of AmoebaNet's activations are not in the paper.",
    )


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    counts = [1, 2, 4, 8, 16, 32]
    for partitions, printed in TABLE_2.items():
        line = [simulated(partitions, m) for m in counts]
        (drawn,) = axes.semilogx(counts, line, base=2, label=f"K = {partitions}, simulated")
        axes.plot([1, 4, 32], printed, "o", color=drawn.get_color(), label="printed")
    axes.set(xlabel="micro-batches M", ylabel="throughput, of K = 2, M = 1")
    axes.legend(ncols=3, fontsize=7)


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)
