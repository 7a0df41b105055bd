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
    ("--layers", "layers", int, "Number of layers; without --preset, layers of gpt3-175b."),
    ("--hidden", "hidden", int, "Width h."),
    ("--heads", "heads", int, "Number of attention heads."),
    ("--seq", "seq", int, "Sequence length in tokens."),
    ("--batch", "batch", int, "Samples per micro-batch."),
    ("--dtype", "dtype", str, "Format of activations: fp16, bf16 or fp32."),
    ("--attention", "attention", str, "Kind of attention: eager, flash or selective."),
    ("--granularity", "granularity", str, "Size of a stage: layer (default), block or op."),
    ("--tensor-parallel", "tensor_parallel", int, "Tensor-parallel degree."),
    ("--data-parallel", "data_parallel", int, "Data-parallel degree, for --zero."),
    ("--zero", "zero_stage", int, "ZeRO stage 0 to 3."),
    ("--optimizer", "optimizer", str, "For --static auto: adamw, adam-mixed, adam (fp32), sgd."),
    ("--device", "device", str, "Device whose peaks set the times [a100-80gb]."),
    ("--efficiency", "efficiency", float, "Share of the device's peaks that is reached [1]."),
    ("--times", "times_path", str, "File of measured times that replace the device's."),
    (
        "--synthetic",
        "synthetic",
        str,
        "Synthetic chain: uniform, alternating, u-shaped, one-huge or heavy-tailed.",
    ),
    ("--seed", "seed", int, "Seed of a synthetic chain."),
)
SWITCHES = (
    (
        "--sequence-parallel",
        "sequence_parallel",
        "Split along the sequence what tensor parallelism leaves whole.",
    ),
    ("--head", "head", "Add embedding and head to bare layers."),
)


def flags() -> dict[str, str]:
    """Field of `WorkloadOptions` -> its flag."""
    flags = {field: flag for flag, field, _, _ in OPTIONS} | {"static": "--static"}
    return flags | {field: flag for flag, field, _ in SWITCHES}


def no_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """All formula options as the command line passes them, those not in `given` unset."""
    absent = dict.fromkeys(flags())
    return {**absent, **{field: False for _, field, _ in SWITCHES}, **given}


def fields_without_options() -> Sequence[str]:
    """Fields of `WorkloadOptions` that no option sets; empty, as a test asserts."""
    from ...workloads import WorkloadOptions

    known = {field for _, field, _, _ in OPTIONS} | {field for _, field, _ in SWITCHES}
    known |= {"static", "allow"}
    return [field.name for field in fields(WorkloadOptions) if field.name not in known]
