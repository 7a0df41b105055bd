"""Runs of many libraries that no rule of the model was made with: settings, memory and throughput.

They were collected, with the settings below, before any of them was predicted. What a source does
not print is that of the code or the configuration that it names; `unsure` says what had to be
assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schedsim.clusters import Architecture, AttentionSizes, Libraries


@dataclass(frozen=True)
class Run:
    """A published run: GiB reserved, tokens per second and device, as far as printed.

    `network` is what one device sends to other nodes in GB/s, where it is not that of the device's
    own nodes.
    """

    name: str
    model: str | Architecture
    options: Mapping[str, Any]
    tokens: float | None = None
    gib: float | None = None
    device: str = "a100-80gb"
    flash: int = 2
    network: float | None = None
    unsure: str = ""


# 400 and 800 Gb/s of a node, shared by its eight devices.
_NODE_400, _NODE_800 = 6.25, 12.5

# torchtitan, docs/performance.md of spring 2024. Its loop held the logits, which were fp32 then.
_SPRING = {"fsdp": 64, "wide_logits": True, "held_logits": True}
_SPRING |= {"libraries": Libraries.of_torch("2.4")}  # its fused norm is one kernel


def _every_second(num_layers: int) -> str:
    """The setting of recomputation that runs every second layer again."""
    return ",".join(["full:1", "none:1"] * (num_layers // 2))


_SPRING_WHY = "Whether layers were compiled is not printed; a month later they were not."

# fms-fsdp compiles the whole model; its FSDP is the first one, and reduces gradients in 16 bits
# (``policies/mixed_precision.py``: ``bfSixteen``).
_FMS = {"seq": 4096, "batch": 2, "compiled": True, "reduce_bf16": True}
_FMS |= {"libraries": Libraries.of_torch("2.3", wide_norm=False)}
_LLAMA_34B = Architecture("llama-34b", 48, 8192, 32000, 22016, AttentionSizes(64, 8, 128))
_FULL_WHY = "Every layer is taken to be run again: their hardware's flops are 4/3 of the model's."


def _bloom(heads: int) -> Architecture:
    """BigScience's 176B: ALiBi, a tied embedding, Megatron's biases and dropout."""
    attention = AttentionSizes(heads, heads, 14336 // heads, bias=True, output_bias=True)
    return Architecture(
        "bloom-176b",
        70,
        14336,
        250880,
        4 * 14336,
        attention,
        gated=False,
        tied=True,
        plain_norm=True,
        dropout=True,
    )


def _bloom_step(data: int, tensor: int, micro: int) -> dict[str, Any]:
    """Options of a step of 2,048 sequences on 384 devices over twelve stages."""
    batch = 2048 // data
    return {
        "fsdp": data,
        "tensor": tensor,
        "pipeline": 12,
        "seq": 2048,
        "batch": batch,
        "num_micro_batches": batch // micro,
        "recompute": "full",
        "eager_attention": True,
        "whole_sequence": True,
        "state": "megatron",
        "fused_optimizer": True,
    }


# InternEvo: a Llama of 32 layers with biases in attention; norms, loss and attention are kernels.
_INTERN = Architecture(
    "internlm-7b",
    32,
    4096,
    103168,
    11008,
    AttentionSizes(32, 32, 128, bias=True, output_bias=True),
)
_EVO = {"seq": 2048, "state": "megatron", "fused_optimizer": True, "compiled_loss": True}
_PLAIN = {**_EVO, "batch": 8, "num_micro_batches": 4}

# NeMo 24.12 in 8 bits: Megatron's state and order, Transformer Engine's kernels.
_NEMO = {"state": "megatron", "regather": True, "fused_optimizer": True, "float8": True}
_NEMO |= {"compiled": True, "compiled_loss": True}
_NEMO_WHY = "Nothing is taken to be run again; the table does not say."
_INTERLEAVED = {"schedule": "interleaved"}
_NEMOTRON = Architecture(
    "nemotron-4-340b", 96, 18432, 256000, 73728, AttentionSizes(96, 8, 192), gated=False
)

# NeMo AutoModel: FSDP2, kernels of Transformer Engine, DeepEP, a gate that spreads tokens evenly.
_AUTO = {"seq": 4096, "fused_optimizer": True, "dispatcher": "deepep"}

# torchtitan in autumn 2025 and later, as in papers/torchtitan.
_LATE = {"separate_head": True, "fused_optimizer": True, "expandable": True}
_CHUNKED = {**_LATE, "loss_chunks": 8, "chunked_head": True}
_DEEPSEEK = {"seq": 4096, "recompute": "selective", "compiled_loss": True, **_LATE}
_DEEPSEEK |= {"libraries": Libraries.of_torch("2.10", routes="product", flex_attention=True)}
_ROUTER_WHY = "How unevenly routers spread tokens is not printed: evenly here."
_ONE_MACHINE = "h100-80gb"

GROUPS: dict[str, list[Run]] = {
    # github pytorch/torchtitan, docs/performance.md (0413364): 64 A100.
    "torchtitan's A100, spring 2024": [
        Run(
            name,
            model,
            {**_SPRING, "seq": seq, "batch": batch, "recompute": recompute},
            tokens,
            network=_NODE_400,
            unsure=_SPRING_WHY,
        )
        for name, model, seq, batch, recompute, tokens in (
            ("8B, every second layer", "llama3-8b", 8192, 1, _every_second(32), 2904),
            ("8B, selective", "llama3-8b", 8192, 1, "selective", 2973),
            ("70B, full", "llama3-70b", 8192, 1, "full", 331),
            ("Llama 2 13B, none", "llama2-13b", 4096, 2, "none", 2162),
            ("Llama 2 13B, every second layer", "llama2-13b", 4096, 2, _every_second(40), 1914),
            ("Llama 2 13B, selective", "llama2-13b", 4096, 2, "selective", 1904),
            ("Llama 2 70B, selective", "llama2-70b", 4096, 1, "selective", 355),
            ("Llama 2 70B, full", "llama2-70b", 4096, 2, "full", 353),
        )
    ],
    # github pytorch/torchtitan, pull requests 481 and 554 (August 2024): 128 H100 with 96 GB.
    "torchtitan's 405B on 128, August 2024": [
        Run(
            "FSDP 16, TP 8, full",
            "llama3-405b",
            {"fsdp": 16, "tensor": 8, "batch": 2, "recompute": "full", "torch": "2.5"},
            109,
            device="h100-96gb",
            unsure="Eager, as its configuration of July has it.",
        )
    ],
    # github foundation-model-stack/fms-fsdp, README.md (5a296af), both tables.
    "fms-fsdp": [
        Run(
            "7B on 128, HSDP",
            "llama2-7b",
            {"fsdp": 8, "replicate": 16, **_FMS},
            4550,
            network=_NODE_400,
        ),
        Run(
            "7B on 96 H100, HSDP",
            "llama2-7b",
            {"fsdp": 8, "replicate": 12, **_FMS},
            9600,
            device="h100-80gb",
            network=_NODE_800,
        ),
        Run(
            "34B on 128, full",
            _LLAMA_34B,
            {"fsdp": 128, "recompute": "full", **_FMS},
            820,
            network=_NODE_400,
            unsure=_FULL_WHY,
        ),
        Run(
            "70B on 128, full",
            "llama2-70b",
            {"fsdp": 128, "recompute": "full", **_FMS},
            410,
            network=_NODE_400,
            unsure=_FULL_WHY,
        ),
    ],
    # github bigscience-workshop/bigscience, train/tr11-176B-ml/chronicles-prequel.md (9e64ede):
    # the table of 176B of February 2022, 384 A100 with four links of 100 Gb/s a node.
    "BigScience's 176B on 384": [
        Run(
            name,
            _bloom(heads),
            _bloom_step(data, tensor, micro),
            2048 * 2048 / 384 / seconds,
            network=_NODE_400,
        )
        for name, data, tensor, micro, heads, seconds in (
            ("TP 8, 64 heads", 4, 8, 2, 64, 121.63),
            ("TP 4, 64 heads", 8, 4, 2, 64, 102.03),
            ("TP 4, 112 heads", 8, 4, 2, 112, 104.50),
            ("TP 4, 128 heads", 8, 4, 2, 128, 105.89),
            ("TP 4, 64 heads, micro-batches of 4", 8, 4, 4, 64, 102.27),
        )
    ],
    # github InternLM/InternEvo, doc/en/train_performance.md (c628a8c): A100 with four links of
    # 100 Gb/s a node.
    "InternEvo's 7B": [
        Run(name, _INTERN, options, tokens, network=_NODE_400)
        for name, options, tokens in (
            ("8 GPUs", {"fsdp": 8, **_PLAIN}, 4078),
            ("64 GPUs, state over 8", {"fsdp": 8, "replicate": 8, **_PLAIN}, 3944),
            ("512 GPUs, state over 8", {"fsdp": 8, "replicate": 64, **_PLAIN}, 3835),
            ("512 GPUs, state over all", {"fsdp": 512, **_PLAIN}, 2861),
            (
                "8 GPUs, TP 2",
                {"fsdp": 4, "tensor": 2, "whole_sequence": True, **_PLAIN, "batch": 16},
                3822,
            ),
            (
                "64 GPUs, TP 2, state over all",
                {"fsdp": 32, "tensor": 2, "whole_sequence": True, **_PLAIN, "batch": 16},
                3438,
            ),
            ("8 GPUs, full", {"fsdp": 8, **_EVO, "batch": 8, "recompute": "full"}, 3314),
            (
                "512 GPUs, full",
                {"fsdp": 8, "replicate": 64, **_EVO, "batch": 8, "recompute": "full"},
                3199,
            ),
            (
                "1,024 GPUs, full, batch 2",
                {"fsdp": 8, "replicate": 128, **_EVO, "batch": 2, "recompute": "full"},
                2341,
            ),
        )
    ],
    # docs.nvidia.com/nemo-framework, 24.12, performance_summary.html: DGX H100 in 8 bits.
    "NeMo 24.12, 8 bits": [
        Run(
            name,
            model,
            {"seq": seq, "batch": batch, "num_micro_batches": micro, **degrees, **_NEMO}
            | ({"overlap_tensor": True} if "tensor" in degrees else {}),
            tokens,
            device="h100-80gb",
            flash=3,
            unsure=_NEMO_WHY,
        )
        for name, model, seq, batch, micro, degrees, tokens in (
            ("Llama 2 7B on 8", "llama2-7b", 4096, 16, 16, {"fsdp": 8}, 16934),
            (
                "Llama 2 13B on 16, PP 4",
                "llama2-13b",
                4096,
                32,
                32,
                {"fsdp": 4, "pipeline": 4, "num_chunks": 10, **_INTERLEAVED},
                8715,
            ),
            (
                "Llama 2 70B on 64, TP 4, PP 4",
                "llama2-70b",
                4096,
                32,
                32,
                {"fsdp": 4, "tensor": 4, "pipeline": 4, "num_chunks": 20, **_INTERLEAVED},
                1728,
            ),
            (
                "Llama 3 8B on 8, CP 2",
                "llama3-8b",
                8192,
                32,
                32,
                {"fsdp": 4, "context": 2},
                12273,
            ),
            (
                "Llama 3 70B on 64, TP 4, PP 4, CP 2",
                "llama3-70b",
                8192,
                64,
                64,
                {"fsdp": 2, "tensor": 4, "pipeline": 4, "context": 2, "num_chunks": 5}
                | _INTERLEAVED,
                1524,
            ),
            (
                "GPT-3 175B on 128, TP 4, PP 8",
                "gpt3-175b",
                2048,
                64,
                64,
                {"fsdp": 4, "tensor": 4, "pipeline": 8, "num_chunks": 6, **_INTERLEAVED},
                716,
            ),
            (
                "GPT-3 175B on 512, TP 4, PP 8",
                "gpt3-175b",
                2048,
                128,
                64,
                {"fsdp": 16, "tensor": 4, "pipeline": 8, "num_chunks": 6, **_INTERLEAVED},
                825,
            ),
            (
                "Nemotron-4 340B on 128, TP 8, PP 8",
                _NEMOTRON,
                4096,
                16,
                16,
                {"fsdp": 2, "tensor": 8, "pipeline": 8, "num_chunks": 12, **_INTERLEAVED},
                326,
            ),
        )
    ],
    # github NVIDIA-NeMo/Automodel, docs/performance-summary.mdx (36044ad), the rows whose files of
    # examples/llm_benchmark agree with the table.
    "NeMo AutoModel": [
        Run(
            "Qwen3 30B-A3B on 8, full",
            "qwen3-30b-a3b",
            {"fsdp": 8, "expert": 8, "batch": 64, "num_micro_batches": 16, "recompute": "full"}
            | {"libraries": Libraries(routes="deepep"), **_AUTO},
            12040,
            device=_ONE_MACHINE,
            flash=3,
        ),
        Run(
            "gpt-oss 20B on 8",
            "gpt-oss-20b",
            {"fsdp": 8, "expert": 8, "batch": 32, "num_micro_batches": 16}
            | {"libraries": Libraries(routes="deepep", flex_attention=True), **_AUTO},
            13058,
            device=_ONE_MACHINE,
        ),
        Run(
            "Llama 3 70B on 64, CP 2, full, compile",
            "llama3-70b",
            {"fsdp": 32, "context": 2, "batch": 4, "num_micro_batches": 4, "recompute": "full"}
            | {"compiled": True, "fused_optimizer": True},
            866.77,
            device=_ONE_MACHINE,
        ),
    ],
    # github pytorch/torchtitan: pull requests 1884 (October 2025) and 2080 (December 2025), H100.
    "torchtitan's pull requests 1884 and 2080": [
        Run(
            "8B on 4, CP 2, full, FlexAttention",
            "llama3-8b",
            {"fsdp": 2, "context": 2, "recompute": "full", **_LATE}
            | {"libraries": Libraries.of_torch("2.10", flex_attention=True)},
            5615,
            44.84,
            device=_ONE_MACHINE,
        ),
        Run(
            "DeepSeek 16B on 8, EP 2",
            "deepseek-v2-lite",
            {"fsdp": 8, "expert": 2, **_DEEPSEEK},
            5942,
            59.54,
            device=_ONE_MACHINE,
            unsure=_ROUTER_WHY,
        ),
        Run(
            "DeepSeek 16B on 8, TP 2, EP 2",
            "deepseek-v2-lite",
            {"fsdp": 4, "tensor": 2, "expert": 2, "whole_experts": True, **_DEEPSEEK},
            2349,
            45.41,
            device=_ONE_MACHINE,
            unsure=_ROUTER_WHY,
        ),
    ],
    # Of devices with no times here, memory alone. github pytorch/torchtitan,
    # components/quantization: mxfp8.md (8 B200, torch 2.9) and nvfp4.md (b5bcd76, 2026); github
    # mlc-ai/pith-train, issue 79 (July 2026), which runs torchtitan.
    "torchtitan on B200": [
        Run(
            "8B on 8, selective, compile",
            "llama3-8b",
            {"fsdp": 8, "recompute": "selective", "compiled": True, "compiled_loss": True}
            | {"torch": "2.9", **_LATE},
            gib=33.71,
            device="h200",
        ),
        Run(
            "8B on 4, 32 x 2,048, selective, compile",
            "llama3-8b",
            {"fsdp": 4, "seq": 2048, "batch": 32, "recompute": "selective", "compiled": True}
            | {"torch": "2.14", **_CHUNKED},
            gib=174.49,
            device="h200",
        ),
        Run(
            "Qwen3 8B on 4, 16 x 2,048, selective, compile",
            "qwen3-8b",
            {"fsdp": 4, "seq": 2048, "batch": 16, "recompute": "selective", "compiled": True}
            | {"torch": "2.14", **_CHUNKED},
            gib=112.88,
            device="h200",
        ),
        Run(
            "Qwen3 30B-A3B on 8, 8 x 8,192, selective, compile",
            "qwen3-30b-a3b",
            {"fsdp": 8, "batch": 8, "recompute": "selective", "compiled": True}
            | {"compiled_loss": True, "torch": "2.14", **_CHUNKED},
            gib=141.79,
            device="h200",
        ),
    ],
}
"""Rows by source."""

_EIGHT_BITS = "Steps in 8 bits without tensor parallelism are predicted too fast; why is not found."
_HOSTS = (
    "What recomputation ran is not printed, and what hosts do besides launching kernels, which so "
    "short a step waits for, is not modelled."
)
_BEHIND = "InternEvo does not gather parameters beside computation."
_LESS = (
    "Products are predicted to lose half of their rate beside messages, which go on for much of "
    "the step: here they lose less."
)
MISSES = {
    "FSDP 16, TP 8, full": _LESS,
    "Llama 3 70B on 64, CP 2, full, compile": _LESS,
    "Llama 2 70B, selective": "Messages take longer than computation: links of these nodes give "
    "more than 0.75 of their rate.",
    "512 GPUs, state over all": _BEHIND,
    "64 GPUs, TP 2, state over all": _BEHIND,
    "Llama 2 7B on 8": _EIGHT_BITS,
    "Llama 2 13B on 16, PP 4": _EIGHT_BITS,
    "Llama 3 8B on 8, CP 2": _EIGHT_BITS,
    "gpt-oss 20B on 8": "Megatron-Bridge's steps with experts are predicted too fast as well.",
    "DeepSeek 16B on 8, EP 2": _HOSTS,
    "DeepSeek 16B on 8, TP 2, EP 2": _HOSTS,
}
"""Why the worst predictions miss, as far as it is known."""
