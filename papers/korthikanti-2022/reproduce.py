"""Korthikanti et al. 2022: bytes of a layer, what selective recomputation buys, flops and time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, main

import schedsim
from schedsim import Chain
from schedsim.pipelines import keep_all, make_order, make_pipeline, most_in_flight, run_pipeline
from schedsim.workloads import PRESETS, TransformerConfig, layer_saved_bytes, transformer_model

SOURCE = Source(
    title="Korthikanti et al. 2022, Reducing activation recomputation in large transformer models",
    what="tables 2, 4 and 5, figure 7, first stages of pipelines, appendix B",
    fast=True,
)
SEQ, VOCAB, PEAK_FLOPS = 2048, 51200, 312e12
# Heads, width, layers, pipeline stages, batch, micro-batch; tensor-parallel degree 8 throughout.
MODELS = {
    "22B": ("gpt-22b", 64, 6144, 48, 1, 4, 4),
    "175B": ("gpt3-175b", 96, 12288, 96, 8, 64, 1),
    "530B": ("mt-nlg-530b", 128, 20480, 105, 35, 280, 1),
    "1T": ("gpt-1t", 160, 25600, 128, 64, 512, 1),
}
# Seconds of an iteration with full recomputation and with theirs; gain, MFU, HFU in percent.
TABLE_5 = {
    "22B": (1.42, 1.10, 29.0, 41.5, 43.7),
    "175B": (18.13, 13.75, 31.8, 51.4, 52.8),
    "530B": (49.05, 37.83, 29.7, 56.0, 57.0),
    "1T": (94.42, 71.49, 32.1, 56.3, 57.0),
}
# Forward, backward of a 22B layer in ms, and the overhead printed.
TABLE_4 = {
    "full recomputation": (7.7, 19.5, 39),
    "selective recomputation": (7.7, 13.2, 7),
    "selective and sequence parallel": (7.2, 13.1, 4),
}
PRODUCTS = ("qkv", "scores", "context", "proj", "up", "down", "logits")


def layer(model: str, **more: object) -> TransformerConfig:
    """One bare layer of a model of the paper."""
    _, heads, hidden, _, _, _, micro_batch = MODELS[model]
    sizes = {"num_layers": 1, "hidden": hidden, "num_heads": heads, "seq": SEQ}
    return TransformerConfig(name=model, batch=micro_batch, **(sizes | more))  # type: ignore[arg-type]


def kept(model: str, *, selective: bool = False, **more: object) -> int:
    """Bytes that a layer keeps, from its ops.

    Selective recomputation keeps what flash attention keeps, less its statistics.
    """
    config = layer(model, attention="flash" if selective else "eager", **more)
    statistics = 4 * config.batch * config.num_heads // config.tensor_parallel * SEQ
    return layer_saved_bytes(config) - (statistics if selective else 0)


def product_flops(model: str) -> int:
    """Flops of all matrix products of a step of one sequence, forward and backward."""
    return sum(
        op.flops
        for stage in transformer_model(PRESETS[MODELS[model][0]]).stages  # type: ignore[arg-type]
        for op in (*stage.forward, *stage.backward)
        if op.name.split(".")[-1].removesuffix("'") in PRODUCTS
    )


def core_flops(model: str) -> int:
    """Flops of the two products of the attention core, forward, over the whole model."""
    stage = transformer_model(layer(model)).stages[0]
    core = sum(op.flops for op in stage.forward if op.name.split(".")[-1] in PRODUCTS[1:3])
    return core * MODELS[model][3] // layer(model).batch


def first_device_share(stages: int, chunks: int) -> float:
    """Layers whose activations the first device holds at most, over those of the model."""
    num_micro = 2 * stages
    names = (
        ("1f1b", stages, num_micro) if chunks == 1 else ("interleaved", stages, num_micro, chunks)
    )
    held = max(sum(counts.values()) for counts in most_in_flight(make_order(*names))[0])
    return held / (stages * chunks)


def first_device(*, free_outputs: bool) -> tuple[int, int]:
    """(bytes held for backwards, peak) of the first device of the 530B model under 1F1B.

    Three layers a stage, s b h outputs.
    """
    config = layer("530B")
    sbh_bytes = 2 * SEQ * config.batch * config.hidden
    stages = MODELS["530B"][4]
    chain = Chain.from_arrays(
        "530B",
        sbh_bytes,
        forward_s=[1] * stages,
        backward_s=[2] * stages,
        output_bytes=[sbh_bytes] * stages,
        saved_bytes=[3 * kept("530B", tensor_parallel=8)] * stages,
    )
    pipeline = make_pipeline(chain, stages, 2 * stages, free_outputs=free_outputs)
    order = make_order("1f1b", stages, 2 * stages)
    run = run_pipeline(pipeline, order, [keep_all(1)] * stages)
    held = int(run.simulation.pool_timeline("device:0")["saved"].max())
    return held, run.devices[0].peak_bytes


def recompute_overhead(forward_s: float, backward_s: float) -> float:
    """Percent that recomputing every one of 48 layers adds to their store-all time."""
    ones = [1] * 48
    chain = Chain.from_arrays(
        "layers",
        1,
        forward_s=[forward_s] * 48,
        backward_s=[backward_s] * 48,
        output_bytes=ones,
        saved_bytes=ones,
    )
    overhead = schedsim.plan(chain, 200, "recompute_all").overhead
    assert overhead is not None
    return 100 * overhead


def claims(instances: Instances) -> Iterator[Claim]:
    for model, term in (("175B", 80), ("530B", 64)):
        config = layer(model)
        sbh = SEQ * config.batch * config.hidden
        yield Claim(
            what=f"{model}: 5 a s / h, from the ops of a layer",
            claimed=term,
            ours=kept(model) / sbh - 34,
            seen="text",
        )
    # Table 2 for the 22B model, in bytes.
    sbh = SEQ * 4 * 6144
    core = 5 * 64 * SEQ * SEQ * 4
    for name, formula, options in (
        ("nothing", 34 * sbh + core, {"tensor_parallel": 1}),
        ("tensor parallel", 10 * sbh + (24 * sbh + core) // 8, {"tensor_parallel": 8}),
        (
            "tensor and sequence parallel",
            (34 * sbh + core) // 8,
            {"tensor_parallel": 8, "sequence_parallel": True},
        ),
        (
            "tensor parallel, selective",
            10 * sbh + 24 * sbh // 8,
            {"tensor_parallel": 8, "selective": True},
        ),
        (
            "tensor and sequence parallel, selective",
            34 * sbh // 8,
            {"tensor_parallel": 8, "sequence_parallel": True, "selective": True},
        ),
    ):
        yield Claim(
            what=f"table 2, {name}: bytes of a 22B layer",
            claimed=formula,
            ours=kept("22B", **options),  # type: ignore[arg-type]
            seen="text",
        )
    for model, saves, costs in (("175B", 70, 2.7), ("530B", 65, 1.6)):
        yield Claim(
            what=f"{model}: selective recomputation saves",
            claimed=saves,
            ours=100 * (1 - kept(model, selective=True) / kept(model)),
            unit="%",
            within=0.5,
            seen="text",
        )
        yield Claim(
            what=f"{model}: flops it adds, by the paper's count of hardware flops",
            claimed=costs,
            ours=100 * 3 * core_flops(model) / product_flops(model),
            unit="%",
            within=0.1,
            seen="text",
        )
    yield Claim(
        what="175B: flops it adds, the two products run forward once more",
        claimed=2.7,
        ours=100 * core_flops("175B") / product_flops("175B"),
        unit="%",
        within=0.1,
        seen="text",
        why="The printed hardware flops count 12 B L s^2 h more; the core's forward takes 4 by the "
        "paper's own count.",
    )
    for model in MODELS:
        whole = kept(model, tensor_parallel=8)
        found = {
            "both": kept(model, tensor_parallel=8, sequence_parallel=True, selective=True),
            "full": 2 * SEQ * layer(model).batch * layer(model).hidden,
        }
        for name, most in (("both", 20), ("full", 10)):
            yield Claim(
                what=f"figure 7, {model}, {name}: share of the tensor-parallel layer",
                claimed=most,
                ours=100 * found[name] / whole,
                unit="%",
                within=0.05,
                relation="at most",
                seen="text",
                why="The bars of the figure include the output deallocation of appendix B."
                if name == "both"
                else "",
            )
    for model, (full_s, ours_s, gain, mfu, hfu) in TABLE_5.items():
        batch, gpus = MODELS[model][5], 8 * MODELS[model][4]
        second = batch * product_flops(model) / (gpus * PEAK_FLOPS * ours_s)
        hardware = 1 + 3 * core_flops(model) / product_flops(model)
        rounding = 0.005 / ours_s * mfu + 0.05
        yield Claim(
            what=f"table 5, {model}: gain of the printed times",
            claimed=gain,
            ours=100 * (full_s / ours_s - 1),
            unit="%",
            within=100 * 0.01 / ours_s + 0.05,
            seen="text",
        )
        yield Claim(
            what=f"table 5, {model}: MFU from our ops",
            claimed=mfu,
            ours=100 * second,
            unit="%",
            within=rounding,
            seen="text",
        )
        yield Claim(
            what=f"table 5, {model}: HFU from our ops and the printed formula",
            claimed=hfu,
            ours=100 * second * hardware,
            unit="%",
            within=rounding,
            seen="text",
        )
    for name, (forward_ms, backward_ms, percent) in TABLE_4.items():
        yield Claim(
            what=f"table 4, {name}: overhead of the printed times",
            claimed=percent,
            ours=100 * ((forward_ms + backward_ms) / (7.7 + 11.9) - 1),
            unit="%",
            within=1,
            seen="text",
        )
    yield Claim(
        what="table 4, full recomputation of 48 such layers, simulated",
        claimed=39,
        ours=recompute_overhead(7.7, 11.9),
        unit="%",
        within=1,
        seen="text",
    )
    yield Claim(
        what="the same if the backward took twice the forward, as expected",
        claimed=39,
        ours=recompute_overhead(7.7, 2 * 7.7),
        unit="%",
        within=1,
        seen="text",
        why="The measured backward takes 1.55 forwards.",
    )
    for model, chunks in (("22B", 1), ("175B", 1), ("175B", 3), ("530B", 3)):
        stages = MODELS[model][4]
        factor = 1 + (stages - 1) / (stages * chunks) if chunks > 1 else 1.0
        yield Claim(
            what=f"{model}, {stages} stages, {chunks} a device: first device's layers over L",
            claimed=factor,
            ours=first_device_share(stages, chunks),
            seen="text",
        )
    before, after = (first_device(free_outputs=free) for free in (False, True))
    for k, (name, why) in enumerate(
        (
            ("held for the backward", ""),
            (
                "of the peak",
                "The output of the micro-batch that runs at the peak is still there: of 35 in "
                "flight, 34 are freed.",
            ),
        )
    ):
        yield Claim(
            what=f"appendix B, 530B, 35 simulated stages: outputs deallocated, {name}",
            claimed=2.73,
            ours=(before[k] - after[k]) / 2**30,
            unit="GiB",
            within=0.005,
            seen="text",
            why=why,
        )
    yield Claim(
        what="appendix B, 530B: outputs deallocated, s b h p in fp16",
        claimed=2.73,
        ours=2 * SEQ * layer("530B").batch * layer("530B").hidden * MODELS["530B"][4] / 2**30,
        unit="GiB",
        within=0.005,
        seen="text",
        check="The same number as that of the simulated stages.",
    )


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    for k, (name, options) in enumerate(
        {
            "sequence parallel": {"sequence_parallel": True},
            "selective": {"selective": True},
            "both": {"sequence_parallel": True, "selective": True},
        }.items()
    ):
        shares = []
        for model in MODELS:
            whole = kept(model, tensor_parallel=8)
            shares.append(100 * kept(model, tensor_parallel=8, **options) / whole)  # type: ignore[arg-type]
        axes.bar([i + 0.2 * k for i in range(4)], shares, 0.2, label=name)
    full = [
        100 * 2 * SEQ * layer(m).batch * layer(m).hidden / kept(m, tensor_parallel=8)
        for m in MODELS
    ]
    axes.bar([i + 0.6 for i in range(4)], full, 0.2, label="full")
    axes.set_xticks([i + 0.3 for i in range(4)], list(MODELS))
    axes.set(ylabel="bytes, % of tensor parallel alone", ylim=(0, 90))
    axes.legend(ncols=2)


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)
