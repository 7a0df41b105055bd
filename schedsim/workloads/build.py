"""From options, as on the command line, to a workload and the assumptions behind it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

from ..chain import Chain
from ..errors import SchedsimError
from ..graph import Graph
from ..units import format_bytes
from .devices import DTYPE_BYTES, Roofline, get_device
from .model_state import STATE_RULES, model_state_bytes
from .ops import ModelRecord, to_chain, to_graph
from .presets import BARE_MODEL, PRESETS
from .resnet import ResNetConfig, resnet_model
from .synthetic import SYNTHETIC
from .times import with_measured_times
from .transformer import TransformerConfig, transformer_model

GRANULARITIES = ("layer", "block", "op")
ATTENTIONS = ("eager", "flash")


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadOptions:
    """What a formula workload is made of; ``None`` means not given.

    Parameters
    ----------
    preset, layers, hidden, heads, seq, batch, dtype, attention
        The model; `layers` alone means that many layers of gpt3-175b.
    granularity
        ``layer``, ``block`` (both chains) or ``op`` (a graph).
    tensor_parallel, sequence_parallel, head
        As in `TransformerConfig`; `head` adds embedding and head to bare layers.
    static, optimizer, zero_stage, data_parallel
        Model state: ``"auto"`` counts it, a number is taken as it is, by default 0.
    device, efficiency, times_path
        Where times come from.
    synthetic, seed
        A synthetic chain of `layers` stages instead of a model.
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


@dataclass(frozen=True, slots=True)
class BuiltWorkload:
    """A workload, and in plain words what was assumed: model first, then state, then times."""

    workload: Chain | Graph
    assumptions: tuple[str, ...]


def build_workload(options: WorkloadOptions) -> BuiltWorkload:
    """The workload that `options` describe.

    Raises
    ------
    SchedsimError
        An option is unknown, out of range, or contradicts another.

    Examples
    --------
    >>> built = build_workload(WorkloadOptions(layers=96))
    >>> built.workload.num_stages, built.assumptions[0]
    (96, '96 layers of gpt3-175b, micro-batch 1, sequence 2048, fp16, eager attention, by layer')
    """
    if options.synthetic is not None:
        return _synthetic(options)
    granularity = options.granularity or "layer"
    if granularity not in GRANULARITIES:
        raise SchedsimError(
            f"--granularity {granularity!r} is unknown", hint=f"one of {', '.join(GRANULARITIES)}"
        )
    device = get_device(options.device or "a100-80gb")
    efficiency = 1.0 if options.efficiency is None else options.efficiency
    if not 0 < efficiency <= 1:
        raise SchedsimError(
            f"--efficiency {efficiency:g} is not in (0, 1]", hint="0.5 means half of the peak rates"
        )
    config = _config(options)
    if isinstance(config, ResNetConfig):
        if granularity == "block":
            raise SchedsimError(
                "--granularity block is for transformers: a residual block is one stage",
                hint="use --granularity layer (a stage per residual block) or op",
            )
        model, title = resnet_model(config), _image_title(config)
    else:
        model = transformer_model(config, split_layers=granularity == "block")
        title = _title(config, options)
    static_bytes, state = _static(options, model)
    lower = to_graph if granularity == "op" else to_chain
    workload: Chain | Graph = lower(model, Roofline(device, efficiency), static_bytes=static_bytes)
    share = "" if efficiency == 1 else f" at {efficiency:.0%} of its peaks"
    times = f"times: roofline of {device.name}{share} ({device.source})"
    if options.times_path is not None:
        workload = with_measured_times(workload, options.times_path)
        times = f"times: measured, from {options.times_path}"
    return BuiltWorkload(workload, (f"{title}, by {granularity}", state, times))


def variants(options: WorkloadOptions) -> list[tuple[str, WorkloadOptions]]:
    """Changes to `options` that may lower the memory needed, with a label each.

    Examples
    --------
    >>> [label for label, _ in variants(WorkloadOptions(layers=4, batch=2))]
    ['--granularity block', '--attention flash', '--batch 1', '--tensor-parallel 2', \
'--tensor-parallel 4', '--tensor-parallel 8']
    """
    if options.synthetic is not None or options.times_path is not None:
        return []
    config = _config(options)
    found = []
    if isinstance(config, TransformerConfig):
        if (options.granularity or "layer") == "layer":
            found.append(("--granularity block", replace(options, granularity="block")))
        if config.attention == "eager":
            found.append(("--attention flash", replace(options, attention="flash")))
    if config.batch > 1:
        half = config.batch // 2
        found.append((f"--batch {half}", replace(options, batch=half)))
    if isinstance(config, TransformerConfig):
        for degree in (2, 4, 8):
            if degree > config.tensor_parallel and config.num_heads % degree == 0:
                label = f"--tensor-parallel {degree}"
                found.append((label, replace(options, tensor_parallel=degree)))
    return found


def _config(options: WorkloadOptions) -> TransformerConfig | ResNetConfig:
    name = options.preset
    if name is None:
        if options.layers is None:
            raise SchedsimError(
                "no workload: neither a file, nor --layers, nor --preset",
                hint="try --layers 96, or --preset gpt2",
            )
        name = BARE_MODEL
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        raise SchedsimError(
            f"--preset {name!r} is unknown",
            hint=f"did you mean {near[0]!r}?" if near else f"one of {', '.join(PRESETS)}",
        )
    if options.dtype is not None and options.dtype not in DTYPE_BYTES:
        raise SchedsimError(
            f"--dtype {options.dtype!r} is unknown", hint=f"one of {', '.join(DTYPE_BYTES)}"
        )
    config = PRESETS[name]
    if isinstance(config, ResNetConfig):
        return _image_config(config, options)
    if options.attention is not None and options.attention not in ATTENTIONS:
        raise SchedsimError(f"--attention {options.attention!r} is unknown", hint="eager or flash")
    if config.patch and options.seq is not None:
        raise SchedsimError(
            f"--seq {options.seq} does not go with {name}: the image sets the sequence",
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
    if options.hidden is not None and options.hidden != config.hidden:
        # The presets' other widths belong to their own hidden size.
        changed |= {"ffn": 0, "num_kv_heads": 0}
    config = replace(
        config,
        sequence_parallel=options.sequence_parallel,
        **changed,  # type: ignore[arg-type]
    )
    config.check()
    return config


def _image_config(config: ResNetConfig, options: WorkloadOptions) -> ResNetConfig:
    for option in ("layers", "hidden", "heads", "seq", "attention", "tensor_parallel"):
        if getattr(options, option) is not None:
            raise SchedsimError(
                f"--{option.replace('_', '-')} does not go with resnet-{config.depth}",
                hint="a ResNet takes --batch and --dtype",
            )
    if options.sequence_parallel:
        raise SchedsimError("--sequence-parallel does not go with a ResNet")
    if options.batch is not None and options.batch < 1:
        raise SchedsimError(f"--batch {options.batch} is not at least 1")
    return replace(config, batch=options.batch or config.batch, dtype=options.dtype or config.dtype)


def _static(options: WorkloadOptions, model: ModelRecord) -> tuple[int, str]:
    sharding = {
        "zero_stage": options.zero_stage,
        "data_parallel": options.data_parallel,
    }
    if options.static != "auto":
        for option in ("optimizer", *sharding):
            if getattr(options, option) is not None:
                name = {"zero_stage": "zero"}.get(option, option).replace("_", "-")
                raise SchedsimError(
                    f"--{name} has no effect without --static auto", hint="add --static auto"
                )
    if options.static is None:
        return 0, "model state: none counted (--static auto counts it)"
    if isinstance(options.static, int):
        return options.static, f"model state: {format_bytes(options.static)}, as given"
    if options.static != "auto":
        raise SchedsimError(f"--static {options.static!r} is neither 'auto' nor a size")
    optimizer = options.optimizer or "adam-mixed"
    size = model_state_bytes(
        model.num_parameters,
        optimizer=optimizer,
        tensor_parallel=options.tensor_parallel or 1,
        **{key: value for key, value in sharding.items() if value is not None},
    )
    ranks = f", ZeRO {options.zero_stage or 0} over {options.data_parallel or 1} ranks"
    return size, (
        f"model state: {format_bytes(size)}, {model.num_parameters:,} parameters, "
        f"{STATE_RULES[optimizer].says}{ranks if options.data_parallel else ''}"
    )


def _title(config: TransformerConfig, options: WorkloadOptions) -> str:
    layers = f"{config.num_layers} layer{'s' if config.num_layers != 1 else ''} of {config.name}"
    what = layers if options.preset is None or options.layers is not None else config.name
    if options.hidden is not None or options.heads is not None:
        what += f" resized to width {config.hidden} with {config.num_heads} heads"
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
    if options.preset is None and options.head:
        parts.append("embedding and head")
    return ", ".join(parts)


def _image_title(config: ResNetConfig) -> str:
    pixels = f"{config.image} x {config.image} pixels"
    return f"resnet-{config.depth}, batch {config.batch}, {pixels}, {config.dtype}"


def _synthetic(options: WorkloadOptions) -> BuiltWorkload:
    name = options.synthetic or ""
    if name not in SYNTHETIC:
        near = difflib.get_close_matches(name, SYNTHETIC, n=1)
        raise SchedsimError(
            f"--synthetic {name!r} is unknown",
            hint=f"did you mean {near[0]!r}?" if near else f"one of {', '.join(SYNTHETIC)}",
        )
    allowed = {"synthetic", "seed", "layers", "sequence_parallel", "head"}
    for option in options.__slots__:
        if option not in allowed and getattr(options, option) is not None:
            raise SchedsimError(
                f"--{option.replace('_', '-')} does not go with --synthetic",
                hint="a synthetic chain takes --layers and --seed",
            )
    if options.layers is None or options.layers < 1:
        raise SchedsimError("--synthetic needs --layers of at least 1", hint="add --layers 50")
    seed = options.seed or 0
    workload = SYNTHETIC[name](options.layers, seed)
    title = f"synthetic {name} chain of {options.layers} stages, seed {seed}"
    return BuiltWorkload(workload, (title,))
