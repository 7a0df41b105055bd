"""ZeRO 2020: bytes of model state, what its stages shard, and activations of GPT-2 1.5B."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, main
from _common import forward_share, store_all

import schedsim
from schedsim import Chain
from schedsim.workloads import PRESETS, TransformerConfig, WorkloadOptions, build_workload
from schedsim.workloads.model_state import model_state_bytes

SOURCE = Source(
    title="Rajbhandari, Rasley, Ruwase, He 2020, ZeRO",
    what="16 bytes a parameter, the stages, activations of GPT-2 1.5B",
    fast=True,
)


@cache
def gpt2_xl(attention: str = "eager") -> Chain:
    """GPT-2 1.5B, sequence 1024, batch 32, fp16, activations alone."""
    options = WorkloadOptions(preset="gpt2-xl", batch=32, attention=attention)
    chain = build_workload(options).workload
    assert isinstance(chain, Chain)
    return chain


def claims(instances: Instances) -> Iterator[Claim]:
    yield Claim(
        what="model state per parameter, mixed-precision Adam",
        claimed=16,
        ours=model_state_bytes(10**6) / 10**6,
        unit="B",
        seen="text",
    )
    yield Claim(
        what="model state of 1.5 B parameters",
        claimed=24,
        ours=model_state_bytes(1_500_000_000) / 1e9,
        unit="GB",
        relation="at least",
        seen="text",
    )
    xl = PRESETS["gpt2-xl"]
    assert isinstance(xl, TransformerConfig)
    yield Claim(
        what="weights of GPT-2 1.5B in fp16",
        claimed=3,
        ours=2 * xl.num_parameters / 1e9,
        unit="GB",
        within=0.15,
        seen="text",
    )
    for stage, claimed in ((0, 120), (1, 31.4), (2, 16.6), (3, 1.9)):
        size = model_state_bytes(7_500_000_000, zero_stage=stage, data_parallel=64)
        yield Claim(
            what=f"figure 1: 7.5 B parameters, 64 ranks, stage {stage}",
            claimed=claimed,
            ours=size / 1e9,
            unit="GB",
            within=0.05,
            seen="memory",
        )
    hidden, layers, tokens = xl.hidden, xl.num_layers, 32 * 1024
    yield Claim(
        what="activations of GPT-2 1.5B, sequence 1K, batch 32: 12 h b s L elements",
        claimed=60,
        ours=2 * 12 * hidden * tokens * layers / 1e9,
        unit="GB",
        within=3,
        seen="text",
    )
    for attention, why in (
        ("eager", "12 elements per token and width leave out the s x s matrices and the masks."),
        ("flash", "A layer keeps 34 bytes per token and width (17 elements), not 24."),
    ):
        yield Claim(
            what=f"the same from the ops, {attention} attention",
            claimed=60,
            ours=store_all(gpt2_xl(attention)).peak_bytes / 1e9,
            unit="GB",
            within=6,
            seen="text",
            why=why,
        )
    for attention in ("eager", "flash"):
        plan = schedsim.plan(gpt2_xl(attention), 10**12, "recompute_all")
        assert plan.peak_bytes is not None
        checkpoints = sum(stage.output_bytes for stage in gpt2_xl(attention).stages[:-1])
        yield Claim(
            what=f"with a checkpoint every layer, {attention}: checkpoints and one layer at work",
            claimed=8,
            ours=(checkpoints + max(s.saved_bytes for s in gpt2_xl(attention).stages[1:-1])) / 1e9,
            unit="GB",
            within=1,
            seen="text",
            why="The logits of 32 sequences in fp32 and their gradient, 13 GB beside, are counted "
            f"neither there nor in this row; the simulated peak is {plan.peak_bytes / 1e9:.1f} GB."
            if attention == "flash"
            else "A layer at work has its s x s matrices beside the checkpoints.",
        )
    chain = gpt2_xl("flash")
    body = replace(chain, stages=chain.stages[1:-1], input_bytes=chain.stages[0].output_bytes)
    overhead = schedsim.plan(body, 10**12, "recompute_all").overhead
    assert overhead is not None
    yield Claim(
        what="overhead of recomputing every layer once (roofline of an A100)",
        claimed=33,
        ours=100 * overhead,
        unit="%",
        within=2,
        seen="text",
        why=f"f / (f + b) is {100 * forward_share(body):.1f} % on this roofline.",
    )


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    ranks = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    for stage in range(4):
        sizes = [
            model_state_bytes(7_500_000_000, zero_stage=stage, data_parallel=n) / 1e9 for n in ranks
        ]
        axes.loglog(ranks, sizes, "o-", label=f"stage {stage}")
    axes.set(xlabel="data-parallel ranks", ylabel="model state of 7.5 B parameters, GB")
    axes.legend()


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)
