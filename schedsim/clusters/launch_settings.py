"""A predicted step as settings of the framework that runs it.

What a framework has no setting for is refused, in one line: a file that starts another step than
the predicted one is worse than none.
"""

from __future__ import annotations

from itertools import groupby

from ..errors import UnsupportedError
from .degrees import Degrees
from .kept_names import without_host
from .prediction import ClusterPrediction
from .stages import StageParts, split_stages
from .training import Training

FRAMEWORKS = ("torchtitan", "megatron")
POLICIES = {"torchtitan": ("none", "selective", "full"), "megatron": ("none", "full:1/2", "full")}
"""What a framework can recompute, the same on all ranks: entries of `RecomputeLadder`."""
_GROWING = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_OF_2025 = "# a job file of torchtitan up to 0.2; since 2026 it takes options of the command line\n"
# torchtitan looks orders up in PyTorch's `get_schedule_class`, which has no ZB-H1.
_ORDERS = {
    "torchtitan": {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B"},
    "megatron": {"1f1b": "", "interleaved": ""},
}
_TORCHTITAN_MODELS = {
    "llama3-8b": ("llama3", "8B"),
    "llama3-70b": ("llama3", "70B"),
    "llama3-405b": ("llama3", "405B"),
    "deepseek-v2-lite": ("deepseek_v3", "16B"),
    "deepseek-v3": ("deepseek_v3", "671B"),
    **{
        f"qwen3-{size}": ("qwen3", size.upper())
        for size in ("0.6b", "1.7b", "4b", "8b", "14b", "32b", "30b-a3b", "235b-a22b")
    },
}


def launch_settings(found: ClusterPrediction, framework: str) -> str:
    """Settings that start the step of `found`: a TOML file, or flags.

    Parameters
    ----------
    framework
        One of `FRAMEWORKS`: ``"torchtitan"`` (its job file of 2025, `torchtitan.config.JobConfig`),
        ``"megatron"`` (arguments of Megatron-LM's ``pretrain_gpt.py``, without those of the model's
        sizes).

    Raises
    ------
    UnsupportedError
        The framework is unknown, or cannot express the step.
    """
    check_framework(framework)
    _check(found, framework)
    return _torchtitan(found) if framework == "torchtitan" else _megatron(found)


def check_framework(framework: str) -> None:
    """Raise `UnsupportedError` where `framework` is none of `FRAMEWORKS`."""
    if framework not in FRAMEWORKS:
        raise UnsupportedError(
            f"no launch settings for {framework!r}", hint=f"one of {', '.join(FRAMEWORKS)}"
        )


def plain_policies(framework: str, training: Training) -> tuple[str, ...]:
    """What `framework` can recompute beside the settings of `training`."""
    known = POLICIES[framework]
    hides = framework == "megatron" and training.hidden_exchange
    return tuple(one for one in known if not (hides and one.startswith("full")))


def has_order(framework: str, schedule: str) -> bool:
    """Whether `framework` runs micro-batches in the order `schedule`."""
    return schedule in _ORDERS[framework]


def _check(found: ClusterPrediction, framework: str) -> None:
    """Refuse what the framework has no word for."""
    degrees, training = found.degrees, found.training
    name = {"torchtitan": "torchtitan", "megatron": "Megatron"}[framework]
    fsdp2 = training.state == "fsdp2"
    titan = framework == "torchtitan"
    for refused, what, hint in (
        (
            without_host(training.recompute) != training.recompute,
            "no offloading by layers",
            "leave out @host; --search --launch does",
        ),
        (
            len(set(training.recompute.split("/"))) > 1,
            "one setting of recomputation for all ranks",
            "give one --recompute to all",
        ),
        (
            degrees.pipeline > 1 and not has_order(framework, training.schedule),
            f"no {training.schedule} order",
            f"one of {', '.join(_ORDERS[framework])}",
        ),
        (training.state == "bf16" and not titan, "no state that is all in bf16", "--state"),
        (training.state == "megatron" and titan, "no ZeRO-1 state", "--state fsdp2"),
        (
            titan and _is_plain(degrees, training) and degrees.num_devices > _plain_ranks(degrees),
            "no plain data parallelism beside other degrees",
            "--state fsdp2, and --fsdp 2 or more",
        ),
        (
            titan and training.state == "fsdp2" and _is_plain(degrees, training),
            "another mixed precision where nothing is sharded",
            "--fsdp 2 or more",
        ),
        (training.loss_chunks > 1, "no chunks of the loss in these settings", "--loss-chunks 1"),
        (training.eager_attention and titan, "no eager attention", "leave it out"),
        (training.float8 and titan and not training.compiled, "no eager 8 bits", "add --compile"),
        (training.whole_sequence and titan, "no whole sequences", "leave out --whole-sequence"),
        (
            training.hidden_exchange and titan,
            "no exchange of tokens beside another micro-batch",
            "leave out --hidden-exchange",
        ),
        (
            training.hidden_exchange and "full" in training.recompute and not titan,
            "no exchange beside another micro-batch where layers run again",
            "leave out --hidden-exchange, or --recompute none or core",
        ),
        (training.reduce_bf16 and titan, "no reduction in 16 bits", "leave out --reduce-bf16"),
        (training.async_tensor and not titan, "no asynchronous tensor parallelism", "leave it out"),
        (
            fsdp2 and not titan and degrees.pipeline * degrees.expert > 1,
            "no FSDP2 beside pipelines or expert-parallel ranks",
            "--state megatron",
        ),
        (
            fsdp2 and not titan and degrees.replicate > 1,
            "no replicas of FSDP2",
            "--state megatron, or leave --replicate out",
        ),
        (
            fsdp2 and not titan and found.model.tied,
            "no FSDP2 for tied embeddings",
            "--state megatron",
        ),
    ):
        if refused:
            raise UnsupportedError(f"{name} has {what}", hint=hint)


def _plain_ranks(degrees: Degrees) -> int:
    """Data-parallel ranks."""
    return degrees.fsdp * degrees.replicate


def _is_plain(degrees: Degrees, training: Training) -> bool:
    """Whether several data-parallel ranks hold all parameters: what is in bf16 is not sharded."""
    shards = 1 if training.state == "bf16" else degrees.shards
    return shards == 1 and _plain_ranks(degrees) > 1


def _allocator(training: Training) -> str:
    """What to set beside these settings, as a comment."""
    return f"# with {_GROWING}\n" if training.expandable else ""


def _torchtitan(found: ClusterPrediction) -> str:
    degrees, training = found.degrees, found.training
    if training.recompute not in POLICIES["torchtitan"]:
        raise UnsupportedError(
            f"torchtitan has one policy for all layers, not {training.recompute!r}",
            hint="none, selective or full",
        )
    micro = training.micro_batch(degrees)
    # Without a pipeline, a local batch is one micro-batch: several are accumulated.
    local = training.batch if degrees.pipeline > 1 else micro
    tables: dict[str, dict[str, object]] = {}
    known = _TORCHTITAN_MODELS.get(found.model.name)
    if known:
        tables["model"] = {"name": known[0], "flavor": known[1]}
        if training.float8:
            tables["model"]["converters"] = ["quantize.linear.float8"]
    tables["optimizer"] = {
        "implementation": "fused" if training.fused_optimizer else "foreach",
        "early_step_in_backward": training.optimizer_in_backward,
    }
    tables["training"] = {
        "local_batch_size": local,
        "global_batch_size": training.batch * degrees.data,
        "seq_len": training.seq,
        "dtype": "bfloat16" if training.state == "bf16" else "float32",
    }
    plain = _is_plain(degrees, training)
    tables["parallelism"] = {
        "data_parallel_replicate_degree": _plain_ranks(degrees) if plain else degrees.replicate,
        "data_parallel_shard_degree": 1 if plain else degrees.fsdp,
        "tensor_parallel_degree": degrees.tensor,
        "enable_async_tensor_parallel": training.async_tensor,
        "pipeline_parallel_degree": degrees.pipeline,
        "context_parallel_degree": degrees.context,
        "expert_parallel_degree": degrees.expert,
        **({"expert_tensor_parallel_degree": degrees.expert_parts} if found.model.experts else {}),
    }
    if training.dispatcher != "alltoall" and degrees.expert > 1:
        tables["parallelism"]["expert_parallel_comm_backend"] = training.dispatcher
    if degrees.pipeline > 1:
        tables["parallelism"] |= {
            "pipeline_parallel_schedule": _ORDERS["torchtitan"][training.schedule],
            "pipeline_parallel_microbatch_size": micro,
            "module_fqns_per_model_part": [
                _module_names(stage) for stage in split_stages(found.model, degrees, training)
            ],
        }
    else:
        reshard = "always" if training.zero_stage == 3 else "never"
        tables["parallelism"]["fsdp_reshard_after_forward"] = reshard
    tables["activation_checkpoint"] = {"mode": training.recompute}
    if training.recompute == "selective":
        tables["activation_checkpoint"]["selective_ac_option"] = "op"
    parts = ["model"] * training.compiled + ["loss"] * training.compiled_loss
    tables["compile"] = {"enable": bool(parts)} | ({"components": parts} if parts else {})
    if training.float8:
        tables["quantize.linear.float8"] = {
            "enable_fsdp_float8_all_gather": degrees.pipeline == 1,
            "precompute_float8_dynamic_scale_for_fsdp": degrees.pipeline == 1,
            "filter_fqns": ["output"],
        }
    text = "\n".join(
        "\n".join([f"[{title}]", *(f"{key} = {_toml(value)}" for key, value in rows.items()), ""])
        for title, rows in tables.items()
    )
    unknown = "" if known else f"# torchtitan has no model like {found.model.name}\n"
    return f"{unknown}{_OF_2025}{_allocator(training)}{text}"


def _module_names(stage: StageParts) -> list[str]:
    """The modules of a stage, as torchtitan's models call them."""
    return [
        *["tok_embeddings"] * stage.embedding,
        *(f"layers.{number}" for number in stage.layers),
        *["norm", "output"] * stage.head,
    ]


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _dispatcher(degrees: Degrees, training: Training) -> list[str]:
    """How Megatron sends tokens to their experts, where that is not its default."""
    words: list[str] = []
    if degrees.expert == 1:
        return words
    if training.dispatcher != "alltoall":
        words += ["--moe-token-dispatcher-type flex"]
        words += [f"--moe-flex-dispatcher-backend {training.dispatcher}"]
    if training.hidden_exchange:
        words.append("--overlap-moe-expert-parallel-comm")
    return words


def _megatron(found: ClusterPrediction) -> str:
    degrees, training = found.degrees, found.training
    words = [
        f"--tensor-model-parallel-size {degrees.tensor}",
        f"--pipeline-model-parallel-size {degrees.pipeline}",
        f"--context-parallel-size {degrees.context}",
        f"--expert-model-parallel-size {degrees.expert}",
        *(["--expert-tensor-parallel-size 1"] if degrees.whole_experts else []),
        *_dispatcher(degrees, training),
        f"--micro-batch-size {training.micro_batch(degrees)}",
        f"--global-batch-size {training.batch * degrees.data}",
        f"--seq-length {training.seq}",
        "--bf16",
    ]
    if training.sequence_ranks(degrees) > 1:
        words.append("--sequence-parallel")
    if training.overlap_tensor:
        words.append("--tp-comm-overlap")
    if degrees.pipeline > 1:
        stages = split_stages(found.model, degrees, training)
        words.append(f"--pipeline-model-parallel-layout '{_layout(stages)}'")
    if training.float8:
        words.append("--fp8-format hybrid")
    if training.eager_attention:
        words.append("--attention-backend unfused")
    if training.compiled_loss:
        words.append("--cross-entropy-loss-fusion")
    words += _megatron_recompute(training.recompute)
    if not found.model.tied:
        words.append("--untie-embeddings-and-output-weights")
    if training.state == "fsdp2":
        words += ["--use-torch-fsdp2", "--no-gradient-accumulation-fusion"]
        words.append("--ckpt-format torch_dist")
        if training.reduce_bf16:
            words.append("--grad-reduce-in-bf16")
        if training.zero_stage == 2:
            words.append("--torch-fsdp2-no-reshard-after-forward")
    else:
        words.append("--use-distributed-optimizer")
        if degrees.data * degrees.context > 1:
            words += ["--overlap-grad-reduce", "--overlap-param-gather"]
        if degrees.replicate > 1:
            words.append(f"--num-distributed-optimizer-instances {degrees.replicate}")
    return _allocator(training) + " \\\n".join(words) + "\n"


def _layout(stages: list[StageParts]) -> str:
    """Stages in Megatron's letters: embedding, decoder layers (t), loss.

    Examples
    --------
    >>> _layout([StageParts(0, range(3), True, False), StageParts(1, range(3, 4), False, True)])
    'Ettt|tL'
    """
    return "|".join(
        "E" * stage.embedding + "t" * len(stage.layers) + "L" * stage.head for stage in stages
    )


def _megatron_recompute(recompute: str) -> list[str]:
    if recompute == "none":
        return []
    if recompute == "core":
        return ["--recompute-granularity selective"]
    parts = [(name, list(group)) for name, group in groupby(recompute.split(","), _policy)]
    names = [name for name, _ in parts]
    count = recompute.partition(",")[0].partition(":")[2]
    if names == ["full"] and not count:
        method, number = "uniform", "1"
    elif names == ["full", "none"] and count and len(parts[0][1]) == 1:
        method, number = "block", count
    else:
        raise UnsupportedError(
            f"Megatron has no recomputation like {recompute!r}",
            hint="none, core, full, or full:4,none:12",
        )
    return [
        "--recompute-granularity full",
        f"--recompute-method {method}",
        f"--recompute-num-layers {number}",
    ]


def _policy(part: str) -> str:
    return part.partition(":")[0]
