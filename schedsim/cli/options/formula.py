"""The options of a formula workload: flag, field of `WorkloadOptions`, type and help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

# (flag, field of WorkloadOptions, type, help)
OPTIONS: tuple[tuple[str, str, Any, str], ...] = (
    (
        "--preset",
        "preset",
        str,
        "Model: gpt2-xl, llama3-8b, qwen3-30b-a3b, sdxl-unet, ...; hf:CONFIG.",
    ),
    ("--layers", "layers", int, "Number of layers; alone, layers of gpt3-175b."),
    ("--hidden", "hidden", int, "Width h."),
    ("--heads", "heads", int, "Number of attention heads."),
    ("--seq", "seq", int, "Sequence length in tokens."),
    ("--batch", "batch", int, "Micro-batch."),
    ("--dtype", "dtype", str, "Activations in fp16, bf16 or fp32."),
    ("--attention", "attention", str, "eager, flash or selective."),
    ("--granularity", "granularity", str, "layer (default), block or op."),
    ("--tensor-parallel", "tensor_parallel", int, "Tensor-parallel degree."),
    ("--data-parallel", "data_parallel", int, "Data-parallel degree, for --zero."),
    ("--zero", "zero_stage", int, "ZeRO stage 0 to 3."),
    ("--optimizer", "optimizer", str, "For --static auto: adamw, adam-mixed, adam (fp32), sgd."),
    ("--device", "device", str, "Device whose peaks set the times; a100-80gb by default."),
    ("--efficiency", "efficiency", float, "Share of the device's peaks reached; 1 by default."),
    ("--times", "times_path", str, "File with measured times."),
    ("--synthetic", "synthetic", str, "uniform, alternating, u-shaped, one-huge, heavy-tailed."),
    ("--seed", "seed", int, "Seed of a synthetic chain."),
)
SWITCHES = (
    ("--sequence-parallel", "sequence_parallel", "Split over the sequence what t does not."),
    ("--head", "head", "Add embedding and head to bare layers."),
)


def flags() -> dict[str, str]:
    """Field of `WorkloadOptions` -> its option."""
    flags = {field: flag for flag, field, _, _ in OPTIONS} | {"static": "--static"}
    return flags | {field: flag for flag, field, _ in SWITCHES}


def no_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """All formula options as the command line has them where only those in `given` are."""
    absent = dict.fromkeys(flags())
    return {**absent, **{field: False for _, field, _ in SWITCHES}, **given}


def check_fields() -> Sequence[str]:
    """Fields of `WorkloadOptions` that no option sets; empty, as a test asserts."""
    from ...workloads import WorkloadOptions

    known = {field for _, field, _, _ in OPTIONS} | {field for _, field, _ in SWITCHES}
    known |= {"static", "allow"}
    return [field.name for field in fields(WorkloadOptions) if field.name not in known]
