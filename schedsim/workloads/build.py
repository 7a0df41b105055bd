"""Builds a workload, and the list of its assumptions, from options as on the command line."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial

from ..checks.checked_arguments import check_arguments, checked
from ..dataflow.chain import Chain
from ..dataflow.graph import Graph
from ..dataflow.variants import check_allowed
from ..errors import SchedsimError
from ..units import format_bytes
from .architectures_by_name import get_architecture
from .devices import Roofline, get_device
from .diffusion import DiTConfig, SDXLConfig, dit_model, sdxl_model
from .graph_variants import with_graph_variants
from .hf_configs import PREFIX
from .known_architectures import ARCHITECTURES
from .language_model import LanguageModelConfig, language_model
from .model_state import STATE_RULES, model_state_bytes, optimizer_of
from .ops import ModelRecord, to_chain, to_graph
from .options import WorkloadOptions, check_choice, check_layers, model_config
from .presets import ModelConfig
from .record_variants import stage_variants
from .resnet import ResNetConfig, resnet_model
from .synthetic import SYNTHETIC
from .times import with_measured_times
from .transformer import TransformerConfig, transformer_model
from .whisper import WhisperConfig, whisper_model


@dataclass(frozen=True, slots=True)
class BuiltWorkload:
    """A workload, and its assumptions in words.

    First the model, then its state, then the times, then what its formula does not count.
    """

    workload: Chain | Graph
    assumptions: tuple[str, ...]


@checked
def build_workload(options: WorkloadOptions) -> BuiltWorkload:
    """The workload that `options` describe.

    Raises
    ------
    SchedsimError
        An option is unknown, out of range, or contradicts another.
    InvalidWorkloadError
        The file of measured times is malformed or does not match the workload.
    OSError
        The file of measured times cannot be read.

    Examples
    --------
    >>> built = build_workload(WorkloadOptions(layers=96))
    >>> built.workload.num_stages, built.assumptions[0]
    (96, '96 layers of gpt3-175b, micro-batch 1, sequence 2048, fp16, eager attention, by layer, \
no embedding or head, static 0')
    """
    given = {field.name: getattr(options, field.name) for field in fields(options)}
    check_arguments(WorkloadOptions, given)
    if options.synthetic is not None:
        return _synthetic(options)
    config = model_config(options)
    device = get_device(options.device or "a100-80gb")
    efficiency = 1.0 if options.efficiency is None else options.efficiency
    if not 0 < efficiency <= 1:
        raise SchedsimError(
            f"--efficiency {efficiency:g} is not in (0, 1]", hint="0.5 means half of the peak rates"
        )
    _check_times(options)
    by_op = options.granularity == "op" or isinstance(config, SDXLConfig | WhisperConfig)
    model = model_record(config, split_layers=options.granularity == "block")
    title = _title(config, replace(options, granularity="op") if by_op else options)
    static_bytes, state = _static(options, config, model)
    roofline = Roofline(device, efficiency)
    allow = check_allowed(options.allow or ())
    workload: Chain | Graph
    if by_op:
        workload = to_graph(model, roofline, static_bytes=static_bytes)
        if allow:
            workload = with_graph_variants(workload, model, allow, config.dtype, roofline)
    else:
        variants_of = partial(stage_variants, allow=allow, dtype=config.dtype) if allow else None
        workload = to_chain(model, roofline, static_bytes=static_bytes, variants_of=variants_of)
    share = "" if efficiency == 1 else f" at {efficiency:.4g} of its peaks"
    notes, windows = _notes(options, config)
    times = f"times: roofline of {device.name}{share} ({device.source}){windows}"
    if options.times_path is not None:
        workload = with_measured_times(workload, options.times_path)
        times = f"times: measured, from {options.times_path}"
    return BuiltWorkload(workload, (title, state, times, *notes))


def _notes(options: WorkloadOptions, config: ModelConfig) -> tuple[tuple[str, ...], str]:
    """What a language model's formula leaves out: a line for each thing, and what of times."""
    name = options.preset
    if name is None or not isinstance(config, TransformerConfig | LanguageModelConfig):
        return (), ""
    if name not in ARCHITECTURES and not name.startswith(PREFIX):
        return (), ""
    model = get_architecture(name)
    if not 0 < model.window < config.seq or not model.num_windowed:
        return model.notes, ""
    window = f"its window of {model.window} tokens in {model.num_windowed} layers"
    if config.attention == "flash":
        return model.notes, f", attention with {window}"
    return model.notes, f", eager attention computes what {window} leaves out, too"


def model_record(config: ModelConfig, *, split_layers: bool = False) -> ModelRecord:
    """The model of `config` as op records."""
    if isinstance(config, ResNetConfig):
        return resnet_model(config)
    if isinstance(config, LanguageModelConfig):
        return language_model(config, split_layers=split_layers)
    if isinstance(config, DiTConfig):
        return dit_model(config)
    if isinstance(config, SDXLConfig):
        return sdxl_model(config)
    if isinstance(config, WhisperConfig):
        return whisper_model(config)
    return transformer_model(config, split_layers=split_layers)


def variants(options: WorkloadOptions) -> list[tuple[str, WorkloadOptions]]:
    """Changes to `options` that may lower the memory needed, each with a label.

    Only changes that `build_workload` accepts. There are none for synthetic chains, and none with
    measured times, which do not hold for a changed workload.

    Examples
    --------
    >>> [label for label, _ in variants(WorkloadOptions(layers=4, batch=2))]
    ['--granularity block', '--attention flash', '--batch 1', '--tensor-parallel 2', \
'--tensor-parallel 4', '--tensor-parallel 8']
    """
    if options.synthetic is not None or options.times_path is not None:
        return []
    config = model_config(options)
    found = []
    if isinstance(config, TransformerConfig | LanguageModelConfig):
        if (options.granularity or "layer") == "layer":
            found.append(("--granularity block", replace(options, granularity="block")))
        if config.attention == "eager":
            found.append(("--attention flash", replace(options, attention="flash")))
    if config.batch > 1:
        half = config.batch // 2
        found.append((f"--batch {half}", replace(options, batch=half)))
    if isinstance(config, TransformerConfig):
        for degree in (2, 4, 8):
            changed = replace(options, tensor_parallel=degree)
            if degree > config.tensor_parallel and _is_possible(changed):
                found.append((f"--tensor-parallel {degree}", changed))
    return found


def _is_possible(options: WorkloadOptions) -> bool:
    try:
        model_config(options)
    except SchedsimError:
        return False
    return True


def _check_times(options: WorkloadOptions) -> None:
    """Refuse device options beside measured times, unless the device times variants."""
    if options.times_path is None or options.allow:
        return
    for flag, value in (("--device", options.device), ("--efficiency", options.efficiency)):
        if value is not None:
            raise SchedsimError(
                f"{flag} {value} has no effect with --times, whose times are measured",
                hint=f"leave {flag} out, or --times",
            )


def _static(options: WorkloadOptions, config: ModelConfig, model: ModelRecord) -> tuple[int, str]:
    """Bytes of model state, and the line that says how they were counted."""
    if options.static != "auto":
        for option in ("optimizer", "zero_stage", "data_parallel"):
            if getattr(options, option) is not None:
                name = {"zero_stage": "zero"}.get(option, option).replace("_", "-")
                raise SchedsimError(
                    f"--{name} {getattr(options, option)} has no effect without --static auto",
                    hint="add --static auto",
                )
    if options.static is None:
        return 0, "model state: none counted (--static auto counts it)"
    if isinstance(options.static, int):
        if options.static < 0:
            raise SchedsimError(
                f"--static {options.static} is negative", hint="give a size, 0 or more, or auto"
            )
        return options.static, f"model state: {format_bytes(options.static)}, as given"
    if options.static != "auto":
        raise SchedsimError(
            f"--static {options.static!r} is neither 'auto' nor a size",
            hint="write --static auto, or a size as 12GB",
        )
    if options.zero_stage and options.data_parallel is None:
        raise SchedsimError(
            f"--zero {options.zero_stage} has nothing to shard over without --data-parallel",
            hint="add --data-parallel 8, or leave --zero out",
        )
    optimizer = optimizer_of(options.optimizer, config.dtype)
    zero_stage = options.zero_stage or 0
    data_parallel = 1 if options.data_parallel is None else options.data_parallel
    size = model_state_bytes(
        model.num_parameters,
        optimizer=optimizer,
        zero_stage=zero_stage,
        data_parallel=data_parallel,
        tensor_parallel=options.tensor_parallel or 1,
    )
    tensor = f", tensor parallel {options.tensor_parallel}" if options.tensor_parallel else ""
    ranks = f", ZeRO {zero_stage} over {data_parallel} ranks" if options.data_parallel else ""
    return size, (
        f"model state: {format_bytes(size)}, {model.num_parameters:,} parameters, "
        f"{STATE_RULES[optimizer].says}{tensor}{ranks}"
    )


def _title(config: ModelConfig, options: WorkloadOptions) -> str:
    if isinstance(config, ResNetConfig):
        return _image_title(config, options)
    how = f"{config.dtype}, by {options.granularity or 'layer'}"
    if isinstance(config, DiTConfig | SDXLConfig):
        edge = f"{config.latent} x {config.latent} latents"
        return f"{config.name}, batch {config.batch}, {edge}, {how}"
    if isinstance(config, WhisperConfig):
        length = f"{config.frames} frames and {config.text} tokens"
        return f"{config.name}, batch {config.batch}, {length}, {how}"
    if isinstance(config, LanguageModelConfig):
        layers = f"{config.num_layers} layers of " if options.layers is not None else ""
        size = f"micro-batch {config.batch}, sequence {config.seq}"
        return (
            f"{layers}{config.name}, {size}, {config.dtype}, {config.attention} attention, by "
            + (options.granularity or "layer")
        )
    return _transformer_title(config, options)


def _transformer_title(config: TransformerConfig, options: WorkloadOptions) -> str:
    layers = f"{config.num_layers} layer{'s' if config.num_layers != 1 else ''} of {config.name}"
    what = layers if options.preset is None or options.layers is not None else config.name
    if options.hidden is not None or options.heads is not None:
        what += f" resized to width {config.hidden} with {config.num_heads} heads"
        what += f" and MLP width {config.ffn_width}"
    parts = [
        what,
        f"micro-batch {config.batch}",
        f"sequence {config.seq}",
        config.dtype,
        f"{config.attention} attention",
    ]
    if config.tensor_parallel > 1:
        both = " with sequence parallelism" if config.sequence_parallel else ""
        parts.append(f"tensor parallel {config.tensor_parallel}{both}")
    parts.append(f"by {options.granularity or 'layer'}")
    if options.preset is None:
        parts.append("embedding and head" if options.head else "no embedding or head")
        parts += ["static 0"] if options.static is None else []
    return ", ".join(parts)


def _image_title(config: ResNetConfig, options: WorkloadOptions) -> str:
    pixels = f"{config.image} x {config.image} pixels"
    how = f"{pixels}, {config.dtype}, by {options.granularity or 'layer'}"
    return f"resnet-{config.depth}, batch {config.batch}, {how}"


def _synthetic(options: WorkloadOptions) -> BuiltWorkload:
    name = options.synthetic or ""
    check_choice("synthetic", name, tuple(SYNTHETIC))
    allowed = ("synthetic", "seed", "layers")
    for option in options.__slots__:
        # Options that are not given: false for flags, empty for lists, None for others.
        value = getattr(options, option)
        if option not in allowed and value not in (None, ()) and value is not False:
            raise SchedsimError(
                f"--{option.replace('_', '-')} does not go with --synthetic",
                hint="a synthetic chain takes --layers and --seed",
            )
    check_layers(options)
    if options.layers is None or options.layers < 1:
        raise SchedsimError("--synthetic needs --layers of at least 1", hint="add --layers 50")
    seed = options.seed or 0
    if seed < 0:
        raise SchedsimError(f"--seed {seed} is negative", hint="a seed is 0 or more")
    workload = SYNTHETIC[name](options.layers, seed)
    title = f"synthetic {name} chain of {options.layers} stages, seed {seed}"
    return BuiltWorkload(workload, (title,))
