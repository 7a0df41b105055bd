"""The options of a formula workload, as on the command line, and the model they describe."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import SchedsimError, did_you_mean
from .config_checks import ATTENTIONS
from .devices import DTYPE_BYTES
from .diffusion import DiTConfig, SDXLConfig
from .hf_configs import PREFIX, hf_config
from .language_model import LanguageModelConfig
from .presets import BARE_MODEL, PRESETS, ModelConfig
from .resnet import ResNetConfig
from .transformer import TransformerConfig
from .whisper import WhisperConfig

GRANULARITIES = ("layer", "block", "op")


MOST_LAYERS, MOST_LAYERS_BY_OP = 100_000, 10_000
"""Limits beyond which just building the workload takes minutes and gigabytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadOptions:
    """The options of a formula workload; ``None`` means not given.

    Parameters
    ----------
    preset, layers, hidden, heads, seq, batch, dtype, attention
        The model; `layers` alone means that many layers of gpt3-175b.
    granularity
        ``layer``, ``block`` (both chains) or ``op`` (a graph).
    tensor_parallel, sequence_parallel, head
        As in `TransformerConfig`; `head` adds embedding and head to bare layers.
    static, optimizer, zero_stage, data_parallel
        Model state: ``"auto"`` counts it by formula, a number gives its bytes; 0 by default.
    device, efficiency, times_path
        The source of times.
    synthetic, seed
        A synthetic chain of `layers` stages instead of a model.
    allow
        Kinds of variants that the workload offers, from `schedsim.dataflow.variants.VARIANT_KINDS`.
    """

    preset: str | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    seq: int | None = None
    batch: int | None = None
    dtype: str | None = None
    attention: str | None = None
    granularity: str | None = None
    tensor_parallel: int | None = None
    sequence_parallel: bool = False
    head: bool = False
    static: str | int | None = None
    optimizer: str | None = None
    zero_stage: int | None = None
    data_parallel: int | None = None
    device: str | None = None
    efficiency: float | None = None
    times_path: str | None = None
    synthetic: str | None = None
    seed: int | None = None
    allow: tuple[str, ...] | None = None


def model_config(options: WorkloadOptions) -> ModelConfig:
    """The configuration that `options` describe, checked.

    Raises
    ------
    SchedsimError
        No model is named, an option is unknown or out of range, or two options contradict each
        other.

    Examples
    --------
    >>> model_config(WorkloadOptions(layers=2, batch=4)).batch
    4
    """
    check_layers(options)
    name = options.preset
    if name is None:
        if options.layers is None:
            raise SchedsimError(
                "no workload: give a file, --layers or --preset",
                hint="try --layers 96, or --preset gpt2",
            )
        name = BARE_MODEL
    if name not in PRESETS and not name.startswith(PREFIX):
        raise SchedsimError(
            f"--preset {name!r} is unknown",
            hint=did_you_mean(name, PRESETS, f"one of {', '.join(PRESETS)}"),
        )
    if options.head and options.preset is not None:
        raise SchedsimError(
            f"--head is for bare layers, and --preset {options.preset} is a whole model",
            hint="leave --head out",
        )
    if options.seed is not None:
        raise SchedsimError(
            f"--seed {options.seed} is for synthetic chains; a model has nothing random",
            hint="leave --seed out; --search-seed is the seed of a planner",
        )
    check_choice("dtype", options.dtype, tuple(DTYPE_BYTES))
    check_choice("attention", options.attention, ATTENTIONS)
    check_choice("granularity", options.granularity, GRANULARITIES)
    config = hf_config(name) if name.startswith(PREFIX) else PRESETS[name]
    if isinstance(config, ResNetConfig):
        return _resnet(config, options)
    if isinstance(config, LanguageModelConfig):
        return _language_model(config, options)
    if isinstance(config, DiTConfig | SDXLConfig | WhisperConfig):
        return _fixed_model(config, options)
    return _transformer(config, options)


def check_layers(options: WorkloadOptions) -> None:
    """Refuse more layers than memory can hold, before any is built.

    Raises
    ------
    SchedsimError
        There are too many layers; a layer is one stage, or some dozens of ops.
    """
    most = MOST_LAYERS_BY_OP if options.granularity == "op" else MOST_LAYERS
    if options.layers is not None and options.layers > most:
        raise SchedsimError(
            f"--layers {options.layers} is more than {most:,}",
            hint="no model is as deep: plan fewer layers, or one pipeline stage of them",
        )


def check_choice(option: str, value: str | None, choices: tuple[str, ...]) -> None:
    """Raise `SchedsimError` if `value` is given and is not among `choices`."""
    if value is not None and value not in choices:
        raise SchedsimError(
            f"--{option} {value!r} is unknown",
            hint=did_you_mean(value, choices, f"one of {', '.join(choices)}"),
        )


def _transformer(config: TransformerConfig, options: WorkloadOptions) -> TransformerConfig:
    if config.patch and options.seq is not None:
        raise SchedsimError(
            f"--seq {options.seq} does not go with {config.name}: the image sets the sequence",
            hint="leave --seq out",
        )
    given = {
        "num_layers": options.layers,
        "hidden": options.hidden,
        "num_heads": options.heads,
        "seq": options.seq,
        "batch": options.batch,
        "dtype": options.dtype,
        "attention": options.attention,
        "tensor_parallel": options.tensor_parallel,
    }
    changed = {field: value for field, value in given.items() if value is not None}
    if options.preset is None:
        changed |= {"embedding": options.head, "head": options.head}
    if config.ffn and options.hidden is not None:
        # Llama's rule: in proportion to the width, rounded up to a multiple of 256.
        changed["ffn"] = -(-config.ffn * options.hidden // (config.hidden * 256)) * 256
    if config.positions and options.seq is not None:
        # A learned position for every token, even beyond those of the released model.
        changed["positions"] = max(config.positions, options.seq)
    config = replace(
        config,
        sequence_parallel=options.sequence_parallel,
        **changed,  # type: ignore[arg-type]
    )
    config.check()
    return config


_SIZES = ("layers", "hidden", "heads", "seq", "attention")
"""Options of transformers that a model of fixed sizes does not take."""


def _refuse(name: str, options: WorkloadOptions, fields: tuple[str, ...], hint: str) -> None:
    """Raise `SchedsimError` for the first of `fields` that is given, and for parallelism."""
    for option in (*fields, "tensor_parallel"):
        value = getattr(options, option)
        if value is not None:
            flag = f"--{option.replace('_', '-')} {value}"
            raise SchedsimError(f"{flag} does not go with {name}", hint=hint)
    if options.sequence_parallel:
        raise SchedsimError(f"--sequence-parallel does not go with {name}", hint=hint)


def _refuse_variants(name: str, options: WorkloadOptions) -> None:
    if options.allow:
        raise SchedsimError(f"--allow does not go with {name}", hint="its ops have no variants yet")


def _language_model(config: LanguageModelConfig, options: WorkloadOptions) -> LanguageModelConfig:
    hint = f"leave it out; schedsim cluster --preset {config.name} splits models over devices"
    if config.name not in PRESETS:
        hint = "leave it out"
    _refuse(config.name, options, ("hidden", "heads"), hint)
    _refuse_variants(config.name, options)
    architecture = config.architecture
    if options.layers is not None:
        architecture = replace(architecture, num_layers=options.layers)
    config = LanguageModelConfig(
        architecture=architecture,
        seq=config.seq if options.seq is None else options.seq,
        batch=config.batch if options.batch is None else options.batch,
        dtype=options.dtype or config.dtype,
        attention=options.attention or config.attention,
    )
    config.check()
    return config


def _fixed_model(
    config: DiTConfig | SDXLConfig | WhisperConfig, options: WorkloadOptions
) -> DiTConfig | SDXLConfig | WhisperConfig:
    hint = f"{config.name} takes --batch and --dtype"
    _refuse(config.name, options, _SIZES, hint)
    _refuse_variants(config.name, options)
    one_stage = not isinstance(config, DiTConfig)
    if options.granularity == "block" or (one_stage and options.granularity == "layer"):
        raise SchedsimError(
            f"--granularity {options.granularity} does not go with {config.name}",
            hint="its layers form no line, so it is planned by op" if one_stage else "layer, or op",
        )
    batch = _checked_batch(options)
    return replace(config, batch=batch or config.batch, dtype=options.dtype or config.dtype)


def _checked_batch(options: WorkloadOptions) -> int | None:
    if options.batch is not None and options.batch < 1:
        raise SchedsimError(
            f"--batch {options.batch} is not at least 1",
            hint="give a whole number of 1 or more to --batch",
        )
    return options.batch


def _resnet(config: ResNetConfig, options: WorkloadOptions) -> ResNetConfig:
    name, hint = f"resnet-{config.depth}", "a ResNet takes --batch and --dtype"
    _refuse(name, options, _SIZES, hint)
    if options.granularity == "block":
        raise SchedsimError(
            "--granularity block is for transformers: a residual block is one stage",
            hint="use --granularity layer (a stage per residual block) or op",
        )
    batch = _checked_batch(options)
    return replace(config, batch=batch or config.batch, dtype=options.dtype or config.dtype)
