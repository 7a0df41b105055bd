"""Parts of a pipeline that follow from a model's formula: state, collectives, split backwards."""

from __future__ import annotations

from ..errors import SchedsimError
from ..plans.links import Link
from ..workloads.build import model_record as record_of
from ..workloads.devices import DTYPE_BYTES, Roofline, get_device
from ..workloads.model_state import model_state_bytes, optimizer_of
from ..workloads.ops import ModelRecord, OpRecord, StageRecord
from ..workloads.options import WorkloadOptions, model_config
from ..workloads.transformer import TransformerConfig
from .pipeline import Collectives, WeightGradient


def model_record(options: WorkloadOptions) -> ModelRecord:
    """The model that `options` describe as op records, with a stage per layer or block."""
    return record_of(model_config(options), split_layers=options.granularity == "block")


def layer_state_bytes(options: WorkloadOptions) -> tuple[int, ...]:
    """Parameters, gradients and optimizer state of each layer, as ``--static auto`` counts them."""
    config = model_config(options)
    optimizer = optimizer_of(options.optimizer, config.dtype)
    return tuple(
        model_state_bytes(
            stage.num_parameters,
            optimizer=optimizer,
            zero_stage=options.zero_stage or 0,
            data_parallel=options.data_parallel or 1,
            tensor_parallel=options.tensor_parallel or 1,
        )
        for stage in model_record(options).stages
    )


def layer_collectives(config: TransformerConfig, link: Link, *, blocks: bool) -> list[Collectives]:
    """Tensor-parallel collectives of each layer, or of each block, over `link`.

    Attention and MLP end with one all-reduce each, of s b h elements, and begin with one in the
    backward. In a ring of t ranks an all-reduce moves 2 (t - 1) / t of its bytes. With sequence
    parallelism an all-gather and a reduce-scatter replace it, and move the same bytes. Embedding
    and head have none here.

    References
    ----------
    Shoeybi et al. 2019, "Megatron-LM", arXiv 1909.08053, figure 4; Korthikanti et al. 2022, section
    4.2.2: the same traffic with sequence parallelism.

    Examples
    --------
    >>> one = TransformerConfig(name="one", num_layers=1, hidden=1024, num_heads=8, seq=512,
    ...                         tensor_parallel=8)
    >>> layer_collectives(one, Link(1e9), blocks=True)[0].forward_s == 2 * 7 / 8 * 2**20 / 1e9
    True
    """
    if config.tensor_parallel < 2:
        raise SchedsimError(
            "collectives need --tensor-parallel of 2 or more", hint="add --tensor-parallel 8"
        )
    size = config.seq * config.batch * config.hidden * DTYPE_BYTES[config.dtype]
    share = 2 * (config.tensor_parallel - 1) / config.tensor_parallel
    one = link.latency_s + share * size / link.bytes_per_s
    seconds = one if blocks else 2 * one
    inner = [Collectives(seconds, seconds)] * (config.num_layers * (2 if blocks else 1))
    ends = Collectives()
    return [ends] * config.embedding + inner + [ends] * config.head


def weight_gradients(model: ModelRecord, roofline: Roofline) -> list[WeightGradient]:
    """The part of each layer's backward that makes weight gradients: half of each matrix product.

    It reads the inputs of the products, which the saved bundle holds, and the gradients of their
    outputs: 14 and 18 s b h bytes in a transformer layer with eager attention and dropout.

    References
    ----------
    Qi et al. 2024, arXiv 2401.10241, table 1: 32 s b h for W.
    """
    return [_of_stage(stage, model, roofline) for stage in model.stages]


def _of_stage(stage: StageRecord, model: ModelRecord, roofline: Roofline) -> WeightGradient:
    sizes = {"out": 0, "d.out": 0}
    for op in (*stage.forward, *stage.backward):
        sizes.update(op.writes)
    sizes["d.out"] = sizes["out"]
    made = {tensor for op in stage.forward for tensor in op.writes} - {"out"}
    kept: set[str] = set()
    gradients: set[str] = set()
    seconds = 0.0
    for op in stage.backward:
        if op.parameter_bytes:
            kept |= {tensor for tensor in op.reads if tensor in made}
            gradients |= {t for t in op.reads if t in sizes and t not in made and t != "out"}
            seconds += _time_s(op, sizes, model, roofline) / 2
    return WeightGradient(seconds, sum(sizes[t] for t in kept), sum(sizes[t] for t in gradients))


def _time_s(op: OpRecord, sizes: dict[str, int], model: ModelRecord, roofline: Roofline) -> float:
    moved = sum(sizes.get(t, 0) for t in op.reads) + sum(op.writes.values()) + op.parameter_bytes
    return roofline.time_s(op.flops, moved, model.matmul_dtype)


def roofline_of(options: WorkloadOptions) -> Roofline:
    """The roofline that gives the times for `options`."""
    efficiency = 1.0 if options.efficiency is None else options.efficiency
    return Roofline(get_device(options.device or "a100-80gb"), efficiency)
