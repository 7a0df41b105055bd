"""Steps on clusters that others published: memory of torchtune, times of Megatron and Llama 3."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, main, published

import schedsim
from schedsim.clusters import Libraries

SOURCE = Source(
    title="Published steps: torchtune, Korthikanti et al. 2022, Dubey et al. 2024",
    what="memory of Llama 3.2 3B on one GPU; seconds of GPT 22B to 1T and rates of Llama 3 405B",
)
MEMORY, TIME = 0.12, 0.15
_3B = {"seq": 4096, "batch": 2, "state": "bf16", "device": "a100-80gb"}
_LOSS = {"compiled": True, "compiled_loss": True}
# torchtune's README (1814feb17): GB of memory in use, each row with all that is above it. Its
# norms keep fp32 copies; without chunks the logits are converted to fp32 before the loss. Its
# recipes drop the compiled form of a loss without chunks (`compile_loss` returns it, and nothing
# takes it), so that such a loss runs as it is.
TORCHTUNE: dict[str, tuple[float, dict[str, Any]]] = {
    "packed sequences": (60.0, {"libraries": Libraries(wide_norm=True)}),
    "and compile": (51.0, {"compiled": True}),
    "and chunked cross entropy": (42.9, _LOSS),
    "and activation checkpointing": (24.9, {**_LOSS, "recompute": "full"}),
    "and optimizer in backward": (
        23.1,
        {**_LOSS, "recompute": "full", "optimizer_in_backward": True},
    ),
}
# Table 5: preset, pipeline, batch, stages a device; seconds with full recomputation, with theirs.
KORTHIKANTI = {
    "22B": ("gpt-22b", 1, 4, 1, 1.42, 1.10),
    "175B": ("gpt3-175b", 8, 64, 3, 18.13, 13.75),
    "530B": ("mt-nlg-530b", 35, 280, 3, 49.05, 37.83),
    "1T": ("gpt-1t", 64, 512, 1, 94.42, 71.49),
}
# Table 4: data-parallel and context-parallel ranks, sequence, batch a data-parallel rank, Tflop/s.
# TP 8 and PP 16; a layer a stage, as the report's section 3.3.2 says of its interleaved order.
LLAMA3 = {
    "8,192 GPUs": (64, 1, 8192, 32, 430),
    "16,384 GPUs": (128, 1, 8192, 16, 400),
    "16,384 GPUs, 128k": (8, 16, 131072, 16, 380),
}


@cache
def seconds(model: str, full: bool) -> float:
    """Seconds of an iteration of Korthikanti et al. on our ranks."""
    preset, pipeline, batch, chunks, _, _ = KORTHIKANTI[model]
    order = {"schedule": "interleaved", "num_chunks": chunks} if chunks > 1 else {}
    return schedsim.cluster(
        preset,
        device="a100-80gb",
        tensor=8,
        pipeline=pipeline,
        seq=2048,
        batch=batch,
        num_micro_batches=1 if pipeline == 1 else batch,
        recompute="full" if full else "core",
        eager_attention=True,
        state="megatron",
        regather=True,
        fused_optimizer=True,
        **order,
    ).step_s


@cache
def teraflops(name: str) -> float:
    """Model flops of Llama 3 405B per second and device, as MFU counts them."""
    data, context, seq, batch, _ = LLAMA3[name]
    found = schedsim.cluster(
        "llama3-405b",
        device="h100-80gb",
        fsdp=data,
        context=context,
        tensor=8,
        pipeline=16,
        seq=seq,
        batch=batch,
        num_micro_batches=batch,
        schedule="interleaved",
        num_chunks=8,
        compiled=True,
        compiled_loss=True,
        state="megatron",
        regather=True,
    )
    return found.mfu * 989


@cache
def in_use(row: str) -> float:
    """GiB in use at the peak of a row of torchtune's table."""
    found = schedsim.cluster("llama3.2-3b", **_3B, **TORCHTUNE[row][1])
    return found.peak_bytes / 2**30


def claims(instances: Instances) -> Iterator[Claim]:
    for row, (gib, _) in TORCHTUNE.items():
        what = f"torchtune, Llama 3.2 3B, {row}: in use"
        yield published(what=what, claimed=gib, ours=in_use(row), share=MEMORY, unit="GiB")
    for model, (*_, full, selective) in KORTHIKANTI.items():
        for name, claimed in (("full", full), ("selective", selective)):
            what = f"Korthikanti table 5, {model}, {name} recomputation: seconds of an iteration"
            yield published(
                what=what, claimed=claimed, ours=seconds(model, name == "full"), share=TIME
            )
        yield Claim(
            what=f"Korthikanti table 5, {model}: gain of selective over full recomputation",
            claimed=100 * (full / selective - 1),
            ours=100 * (seconds(model, True) / seconds(model, False) - 1),
            unit="%",
            within=3,
            seen="text",
        )
    for name, (*_, claimed) in LLAMA3.items():
        what = f"Llama 3 table 4, 405B on {name}: Tflop/s a GPU"
        yield published(
            what=what, claimed=claimed, ours=teraflops(name), share=TIME, seen="second-hand"
        )


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    for k, full in enumerate((True, False)):
        published = [row[4 + k] for row in KORTHIKANTI.values()]
        ours = [seconds(model, full) for model in KORTHIKANTI]
        axes.loglog(published, ours, "o", label="full" if full else "selective")
    axes.loglog([1, 100], [1, 100], color="0.6", linewidth=0.8, zorder=0)
    axes.set(xlabel="published, seconds of an iteration", ylabel="predicted")
    axes.legend()


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)
