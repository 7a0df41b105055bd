"""Published language models as op records: grouped or latent attention, dense MLPs or experts.

The accounting follows `transformer_layer`, with flash or eager attention. Special cases:

- Norms of queries and keys, and norms behind a branch, keep their input.
- Latent attention (DeepSeek-AI 2024, "DeepSeek-V2", arXiv 2405.04434, section 2.1) keeps both
  latents before and after their norm; keys are concatenated from the latent's part and the
  position's part, values are read in place.
- Rotary position codes are applied in place, and logits of sinks take no memory.
- Attention counts the products of a whole sequence, without halving for the causal mask. Where some
  layers have a window, the products of flash attention are as many fewer as those of a causal mask
  are, and each layer takes the mean of all; eager attention computes what a window leaves out, too.
  Bytes are the same.
- Each token goes to as many experts as the model says, and no token is dropped. Each of its experts
  gets a copy of the token; their outputs are weighted and added up.
- The whole model is on one device; `schedsim.clusters` is for parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import SchedsimError
from .architecture import Architecture
from .devices import DTYPE_BYTES
from .ops import ModelRecord, OpRecord, StageRecord, merge_stages
from .stage_tape import StageTape

_INDEX_BYTES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageModelConfig:
    """A published language model and how it is run.

    Parameters
    ----------
    architecture
        The sizes of the model.
    seq, batch
        Tokens of a sequence; sequences at once.
    dtype
        Number format of activations.
    attention
        ``"flash"`` or ``"eager"``.
    """

    architecture: Architecture
    seq: int = 4096
    batch: int = 1
    dtype: str = "bf16"
    attention: str = "flash"

    @property
    def name(self) -> str:
        """The model's."""
        return self.architecture.name

    @property
    def num_layers(self) -> int:
        """The model's."""
        return self.architecture.num_layers

    @property
    def num_parameters(self) -> int:
        """The number of parameters of the whole model."""
        return self.architecture.num_parameters

    def check(self) -> None:
        """Raise `SchedsimError` naming the option and its value where one is out of range."""
        for option, value in (
            ("layers", self.num_layers),
            ("seq", self.seq),
            ("batch", self.batch),
        ):
            if value < 1:
                raise SchedsimError(
                    f"--{option} {value} is not at least 1",
                    hint=f"give a whole number of 1 or more to --{option}",
                )
        if self.attention == "selective":
            raise SchedsimError(
                f"--attention selective does not go with {self.name}", hint="flash or eager"
            )


def language_model(config: LanguageModelConfig, *, split_layers: bool = False) -> ModelRecord:
    """`config` as op records, a stage per layer, or two (attention, MLP) with `split_layers`.

    Raises
    ------
    SchedsimError
        Sizes are out of range.

    Examples
    --------
    >>> from schedsim.workloads import get_architecture
    >>> config = LanguageModelConfig(architecture=get_architecture("qwen3-30b-a3b"))
    >>> language_model(config).num_parameters == config.num_parameters
    True
    """
    config.check()
    model = config.architecture
    # Layers of a kind share their ops, so that `to_chain` replays one layer for all.
    parts = {
        experts: [_attention(config), _experts(config) if experts else _mlp(config)]
        for experts in {model.has_experts(i) for i in range(model.num_layers)}
    }
    merged = {experts: merge_stages("layer", both) for experts, both in parts.items()}
    stages = [_embedding(config)]
    for i in range(model.num_layers):
        experts = model.has_experts(i)
        for part in parts[experts] if split_layers else [merged[experts]]:
            name = f"layer{i}.{part.name}" if split_layers else f"layer{i}"
            stages.append(replace(part, name=name))
    stages.append(_head(config))
    tokens = config.batch * config.seq
    return ModelRecord(model.name, tokens * _INDEX_BYTES, tuple(stages), config.dtype)


def _tape(config: LanguageModelConfig) -> tuple[StageTape, int, int]:
    """(a tape whose input is the hidden state, tokens, bytes of an element)."""
    tokens, element = config.batch * config.seq, DTYPE_BYTES[config.dtype]
    return (
        StageTape(element, {"in": tokens * config.architecture.hidden * element}),
        tokens,
        element,
    )


def _attention(config: LanguageModelConfig) -> StageRecord:
    model, (tape, tokens, element) = config.architecture, _tape(config)
    sizes, h = model.attention, model.hidden
    normed = _normed(tape, model)
    if sizes.kv_rank:
        reads = _latent(tape, model, normed, tokens)
    else:
        query, key, value = sizes.query_width, sizes.key_width, sizes.num_kv_heads * sizes.value
        wide = query + key + value
        bias = wide if sizes.bias else 0
        made = {"q": query, "k": key, "v": value}
        product = OpRecord(
            "qkv",
            (normed,),
            {name: tokens * width * element for name, width in made.items()},
            2 * tokens * h * wide,
            (h * wide + bias) * element,
        )
        tape.op(
            product,
            saved=(normed,),
            backward_flops=2 * product.flops,
            parameters=h * wide + bias,
        )
        reads = ("q", "k", "v")
        if sizes.head_norm:
            gains = sizes.norm_widths
            reads = (
                tape.norm("q_norm", "q", "q.n", parameters=gains[0]),
                tape.norm("k_norm", "k", "k.n", parameters=gains[1]),
                "v",
            )
    mixed = _mix(tape, config, reads)
    bias = h if sizes.output_bias else 0
    branch = tape.product(
        "proj", mixed, "o", rows=tokens, inner=sizes.output_width, outer=h, bias=bias
    )
    return _added(tape, model, branch, "attention")


def _latent(tape: StageTape, model: Architecture, normed: str, tokens: int) -> tuple[str, str, str]:
    """Queries, keys and values through their latents; values are part of a product's output."""
    sizes, h = model.attention, model.hidden
    plain = sizes.head_width - sizes.rope_width
    query, inner = normed, h
    if sizes.query_rank:
        inner = sizes.query_rank
        down = tape.product("q_down", normed, "q.down", rows=tokens, inner=h, outer=inner)
        query = tape.norm("q_norm", down, "q.n", parameters=inner)
    query = tape.product("q_up", query, "q", rows=tokens, inner=inner, outer=sizes.query_width)
    rank = sizes.kv_rank
    tape.product("kv_down", normed, "kv.down", rows=tokens, inner=h, outer=rank + sizes.rope_width)
    narrow = tokens * rank * tape.element_bytes
    # The norm takes only the latent's part; the rest is the position part of every key.
    tape.op(
        OpRecord("kv_norm", ("kv.down",), {"kv.n": narrow}, 8 * tokens * rank),
        saved=("kv.down",),
        backward_flops=12 * tokens * rank,
        parameters=rank,
    )
    outer = sizes.num_heads * (plain + sizes.value)
    tape.product("kv_up", "kv.n", "kv", rows=tokens, inner=rank, outer=outer)
    key = tokens * sizes.query_width * tape.element_bytes
    tape.pointwise("keys", ("kv", "kv.down"), "k", key)
    return query, "k", "kv"


def _mix(tape: StageTape, config: LanguageModelConfig, reads: tuple[str, str, str]) -> str:
    sizes = config.architecture.attention
    element, heads = tape.element_bytes, sizes.num_heads
    rows = config.batch * config.seq * heads
    made = rows * sizes.value * element
    seen = config.seq
    if config.attention == "flash":
        seen = round(2 * config.architecture.seen_tokens(config.seq))
    scored, weighed = (2 * rows * seen * w for w in (sizes.head_width, sizes.value))
    query, key, value = reads
    sinks = heads if sizes.sinks else 0
    if config.attention == "flash":
        record = OpRecord(
            "attention", reads, {"c": made, "lse": 4 * rows}, scored + weighed, 0, ("lse",)
        )
        # The backward computes the scores again, then two products for each product of the forward.
        tape.op(
            record,
            saved=(*dict.fromkeys(reads), "c", "lse"),
            backward_flops=3 * scored + 2 * weighed,
            parameters=sinks,
        )
        return "c"
    scores = rows * config.seq
    tape.op(
        OpRecord("scores", (query, key), {"s": scores * element}, scored),
        saved=(query, key),
        backward_flops=2 * scored,
    )
    tape.op(
        OpRecord("softmax", ("s",), {"p": scores * element}, 5 * scores),
        saved=("p",),
        backward_flops=4 * scores,
        parameters=sinks,
    )
    tape.op(
        OpRecord("context", ("p", value), {"c": made}, weighed),
        saved=("p", value),
        backward_flops=2 * weighed,
    )
    return "c"


def _normed(tape: StageTape, model: Architecture) -> str:
    """The input of attention or MLP."""
    if not model.pre_norm:
        return "in"
    return tape.norm("norm", "in", "n", parameters=model.norm_parameters)


def _added(tape: StageTape, model: Architecture, branch: str, name: str) -> StageRecord:
    if model.post_norm:
        branch = tape.norm("post_norm", branch, "post", parameters=model.norm_parameters)
    if model.dropout:
        size = tape.sizes[branch]
        elements = size // tape.element_bytes
        made = {"dropped": size, "mask": elements}
        tape.op(OpRecord("dropout", (branch,), made, elements, 0, ("mask",)), saved=("mask",))
        branch = "dropped"
    tape.add("residual", "in", branch, "out")
    return tape.stage(name)


def _perceptron(
    tape: StageTape, given: str, prefix: str, sizes: tuple[int, int, int], parameters: int
) -> str:
    """Gate, up, their product, and down; `sizes`: (rows, outer width, inner width)."""
    rows, h, width = sizes
    inner = rows * width * tape.element_bytes
    up, down = parameters * 2 // 3, parameters - parameters * 2 // 3
    gate, other, made, out = (f"{prefix}{name}" for name in ("g", "u", "m", "o"))
    element = tape.element_bytes
    first = OpRecord(
        f"{prefix}up", (given,), {gate: inner, other: inner}, 4 * rows * h * width, up * element
    )
    tape.op(first, saved=(given,), backward_flops=2 * first.flops, parameters=up)
    tape.pointwise(f"{prefix}silu_mul", (gate, other), made, inner, saved=(gate, other), flops=10)
    size = rows * h * element
    last = OpRecord(f"{prefix}down", (made,), {out: size}, 2 * rows * h * width, down * element)
    tape.op(last, saved=(made,), backward_flops=2 * last.flops, parameters=down)
    return out


def _plain_perceptron(
    tape: StageTape, given: str, sizes: tuple[int, int, int], *, bias: bool
) -> str:
    """Up, an activation, and down; `sizes`: (rows, outer width, inner width)."""
    rows, h, width = sizes
    more = (width, h) if bias else (0, 0)
    tape.product("up", given, "g", rows=rows, inner=h, outer=width, bias=more[0])
    inner = rows * width * tape.element_bytes
    tape.pointwise("act", ("g",), "m", inner, saved=("g",), flops=10)
    return tape.product("down", "m", "o", rows=rows, inner=width, outer=h, bias=more[1])


def _mlp(config: LanguageModelConfig) -> StageRecord:
    model, (tape, tokens, _) = config.architecture, _tape(config)
    normed = _normed(tape, model)
    h, width = model.hidden, model.ffn_width
    if model.gated:
        out = _perceptron(tape, normed, "", (tokens, h, width), 3 * h * width)
    else:
        out = _plain_perceptron(tape, normed, (tokens, h, width), bias=model.plain_norm)
    return _added(tape, model, out, "mlp")


def _experts(config: LanguageModelConfig) -> StageRecord:
    model, (tape, tokens, element) = config.architecture, _tape(config)
    experts, h = model.experts, model.hidden
    assert experts is not None
    normed = _normed(tape, model)
    routed, sent = experts.num_routed, tokens * experts.num_active
    bias = routed if experts.bias else 0
    tape.product("router", normed, "logits", rows=tokens, inner=h, outer=routed, bias=bias)
    # The chosen experts and their weights are both kept; the choice has no gradient.
    chosen = {"weights": sent * element, "choice": sent * _INDEX_BYTES}
    tape.op(
        OpRecord("route", ("logits",), chosen, 5 * tokens * routed), saved=("weights", "choice")
    )
    arrived = sent * h * element
    tape.op(
        OpRecord("dispatch", (normed, "choice"), {"sent": arrived}, sent * h),
        saved=("choice",),
        gradients=(normed,),
    )
    sizes = sent, h, experts.width
    out = _perceptron(tape, "sent", "expert_", sizes, experts.routed_parameters(h))
    mixed = tokens * h * element
    branch = "mixed"
    tape.op(
        OpRecord("combine", (out, "weights", "choice"), {branch: mixed}, 2 * sent * h),
        saved=(out, "weights", "choice"),
        gradients=(out, "weights"),
        backward_flops=4 * sent * h,
    )
    if experts.shared_width:
        shared = tokens, h, experts.shared_width
        beside = _perceptron(tape, normed, "shared_", shared, 3 * h * experts.shared_width)
        branch = tape.add("shared_sum", branch, beside, "both")
    return _added(tape, model, branch, "mlp")


def _embedding(config: LanguageModelConfig) -> StageRecord:
    model, tokens = config.architecture, config.batch * config.seq
    size = tokens * model.hidden * DTYPE_BYTES[config.dtype]
    lookup = OpRecord("lookup", ("in",), {"out": size}, tokens * model.hidden)
    back = OpRecord("lookup'", ("d.out", "in"), {}, tokens * model.hidden)
    return StageRecord("embedding", (lookup,), (back,), model.embedding_parameters)


def _head(config: LanguageModelConfig) -> StageRecord:
    model, (tape, tokens, element) = config.architecture, _tape(config)
    normed = tape.norm("norm", "in", "n", parameters=model.norm_parameters)
    weights = model.hidden * model.vocab
    # Korthikanti et al. 2022, section 4.3: the loss is computed in fp32, 4 s b v bytes.
    size, out = tokens * model.vocab * 4, "logits" if model.logit_cap else "out"
    logits = OpRecord(
        "logits",
        (normed,),
        {out: size},
        2 * tokens * weights,
        weights * element,
    )
    own = 0 if model.tied else weights
    tape.op(logits, saved=(normed,), backward_flops=2 * logits.flops, parameters=own)
    if model.logit_cap:
        tape.pointwise("tanh", ("logits",), "tanh", size, saved=("tanh",), flops=10)
        tape.pointwise("cap", ("tanh",), "out", size)
    return tape.stage("head")
