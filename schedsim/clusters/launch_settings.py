"""A predicted step as settings of the framework that runs it."""

from __future__ import annotations

from ..errors import UnsupportedError
from .prediction import ClusterPrediction

FRAMEWORKS = ("torchtitan", "megatron")
_ORDERS = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zero-bubble": "ZBH1",
}


def launch_settings(found: ClusterPrediction, framework: str) -> str:
    """Settings that start the step of `found`: a TOML file, or flags.

    Parameters
    ----------
    framework
        One of `FRAMEWORKS`: ``"torchtitan"`` (its job file of 2025), ``"megatron"`` (arguments of
        Megatron-LM's ``pretrain_gpt.py``).

    Raises
    ------
    UnsupportedError
        The framework is unknown, or cannot express the step.
    """
    if framework == "torchtitan":
        return _torchtitan(found)
    if framework == "megatron":
        return _megatron(found)
    raise UnsupportedError(
        f"no launch settings for {framework!r}", hint=f"one of {', '.join(FRAMEWORKS)}"
    )


def _torchtitan(found: ClusterPrediction) -> str:
    degrees, training = found.degrees, found.training
    policies = set(training.recompute.split("/"))
    if len(policies) > 1 or not policies <= {"none", "selective", "full"}:
        raise UnsupportedError(
            f"torchtitan has one policy for all layers, not {training.recompute!r}",
            hint="none, selective or full",
        )
    lines = [
        "[training]",
        f"local_batch_size = {training.batch}",
        f"global_batch_size = {training.batch * degrees.data}",
        f"seq_len = {training.seq}",
        "",
        "[parallelism]",
        f"data_parallel_replicate_degree = {degrees.replicate}",
        f"data_parallel_shard_degree = {degrees.fsdp}",
        f"tensor_parallel_degree = {degrees.tensor}",
        f"pipeline_parallel_degree = {degrees.pipeline}",
        f"context_parallel_degree = {degrees.context}",
        f"expert_parallel_degree = {degrees.expert}",
    ]
    if degrees.pipeline > 1:
        lines += [
            f'pipeline_parallel_schedule = "{_ORDERS[training.schedule]}"',
            f"pipeline_parallel_microbatch_size = {training.micro_batch(degrees)}",
        ]
    else:
        reshard = "always" if training.zero_stage == 3 else "never"
        lines.append(f'fsdp_reshard_after_forward = "{reshard}"')
    lines += ["", "[activation_checkpoint]", f'mode = "{training.recompute}"']
    if training.recompute == "selective":
        lines.append('selective_ac_option = "op"')
    parts = ['"model"'] * training.compiled + ['"loss"'] * training.compiled_loss
    lines += ["", "[compile]", f"enable = {'true' if parts else 'false'}"]
    if parts:
        lines.append(f"components = [{', '.join(parts)}]")
    return "\n".join(lines) + "\n"


def _megatron(found: ClusterPrediction) -> str:
    degrees, training = found.degrees, found.training
    if len(set(training.recompute.split("/"))) > 1:
        raise UnsupportedError(
            "Megatron has one setting of recomputation for all ranks",
            hint="give one --recompute to all",
        )
    if training.schedule in ("gpipe", "zero-bubble"):
        raise UnsupportedError(
            f"Megatron has no {training.schedule} order", hint="1f1b or interleaved"
        )
    words = [
        f"--tensor-model-parallel-size {degrees.tensor}",
        f"--pipeline-model-parallel-size {degrees.pipeline}",
        f"--context-parallel-size {degrees.context}",
        f"--expert-model-parallel-size {degrees.expert}",
        f"--micro-batch-size {training.micro_batch(degrees)}",
        f"--global-batch-size {training.batch * degrees.data}",
        f"--seq-length {training.seq}",
        "--use-distributed-optimizer",
        "--bf16",
    ]
    if degrees.tensor > 1:
        words.append("--sequence-parallel")
    if training.num_chunks > 1:
        stages = degrees.pipeline * training.num_chunks
        each = max(1, found.model.num_layers // stages)
        words.append(f"--num-layers-per-virtual-pipeline-stage {each}")
    words += _megatron_recompute(training.recompute)
    if training.state == "fsdp2":
        words.append("--use-torch-fsdp2")
    return " \\\n".join(words) + "\n"


def _megatron_recompute(recompute: str) -> list[str]:
    if recompute == "none":
        return []
    if recompute == "core":
        return ["--recompute-granularity selective"]
    policy, _, count = recompute.partition(",")[0].partition(":")
    if policy != "full":
        raise UnsupportedError(
            f"Megatron has no recomputation like {recompute!r}",
            hint="none, core, full, or full:4,none:12",
        )
    if count:
        return [
            "--recompute-granularity full",
            "--recompute-method block",
            f"--recompute-num-layers {count}",
        ]
    return [
        "--recompute-granularity full",
        "--recompute-method uniform",
        "--recompute-num-layers 1",
    ]
