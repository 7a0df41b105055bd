"""Transformers from their sizes: configuration, embedding, layers and head.

The layers are those of `transformer_layer`, by the accounting of Korthikanti et al. 2022: with
``s`` tokens, micro-batch ``b``, width ``h``, ``a`` heads and tensor-parallel degree ``t``, a layer
in a 2-byte format keeps

    s b h (34 + 5 a s / h)               bytes alone
    s b h (10 + 24 / t + 5 a s / (h t))  with tensor parallelism
    s b h (34 / t + 5 a s / (h t))       and sequence parallelism

and without the term in ``5 a s / h``, but 4 a s b / t bytes of statistics, with flash attention.

The paper counts a layer's input, kept by its first norm, to that layer; a stage of a chain counts
its output and not its input. Both have the size of s b h, so the sum of `saved_bytes` over bare
layers is L times the formula, to the byte: layer by layer, block by block, and over the tensors
that the backward ops of the op graph read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import SchedsimError
from .config_checks import ATTENTIONS, check_config
from .devices import DTYPE_BYTES
from .ops import ModelRecord, OpRecord, StageRecord, merge_stages
from .transformer_layer import (
    attention_block,
    gathered_bytes,
    linear,
    mlp_block,
    norm_parameters,
    units,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerConfig:
    """A transformer and how it is run.

    Parameters
    ----------
    num_layers, hidden, num_heads, seq, batch
        L, h, a, s (tokens) and b (micro-batch).
    dtype
        Number format of activations: fp16, bf16 or fp32.
    attention
        ``"eager"`` keeps the s x s matrices; ``"flash"`` keeps 4 bytes per row and head instead
        (Dao et al. 2022) and pays five products in the backward; ``"selective"`` keeps neither and
        runs scores, softmax and its dropout again in the backward (Korthikanti et al. 2022).
    ffn
        Inner width of the MLP; 4 h by default.
    num_kv_heads
        Heads of keys and values; as many as heads by default.
    gated, rms_norm, bias, dropout
        SiLU-gated MLP; norm without centring; linear layers with bias; dropout masks kept.
    tensor_parallel, sequence_parallel
        Degree t; whether what t does not divide is split over the sequence.
    vocab, positions, tied
        Embedding table, learned positions (0: none), head sharing the embedding's weights.
    embedding, head
        Whether the model begins with an embedding and ends with norm, logits and loss.
    window, windowed_share
        Tokens that a token attends to at most in a share of the layers; 0 for none.
    patch, image, classes
        For vision: patch and image edge in pixels, number of classes; 0 for text.
    """

    name: str
    num_layers: int
    hidden: int
    num_heads: int
    seq: int
    batch: int = 1
    dtype: str = "fp16"
    attention: str = "eager"
    ffn: int = 0
    num_kv_heads: int = 0
    gated: bool = False
    rms_norm: bool = False
    bias: bool = True
    dropout: bool = True
    tensor_parallel: int = 1
    sequence_parallel: bool = False
    vocab: int = 0
    positions: int = 0
    tied: bool = True
    embedding: bool = False
    head: bool = False
    window: int = 0
    windowed_share: float = 0.0
    patch: int = 0
    image: int = 0
    classes: int = 0

    def check(self) -> None:
        """Raise `SchedsimError` naming the option and its value where two do not go together."""
        counts = ("num_layers", "hidden", "num_heads", "seq", "batch", "tensor_parallel")
        check_config(self, {"attention": ATTENTIONS}, counts)
        parallel = self.tensor_parallel
        for what, value, divisor, name in (
            ("--hidden", self.hidden, self.num_heads, "--heads"),
            ("--heads", self.num_heads, parallel, "--tensor-parallel"),
            ("the number of key heads", self.kv_heads, parallel, "--tensor-parallel"),
            ("the MLP width", self.ffn_width, parallel, "--tensor-parallel"),
        ):
            if value % divisor:
                raise SchedsimError(
                    f"{what} {value} is not a multiple of {name} {divisor}",
                    hint=f"choose a {name} that divides {value}",
                )
        if self.num_heads % self.kv_heads:
            raise SchedsimError(
                f"--heads {self.num_heads} is not a multiple of the {self.kv_heads} key heads",
                hint=f"choose a --heads that is a multiple of {self.kv_heads}",
            )
        if self.sequence_parallel and parallel == 1:
            raise SchedsimError(
                "--sequence-parallel needs --tensor-parallel, which is 1",
                hint="add --tensor-parallel 8, or leave --sequence-parallel out",
            )
        if self.sequence_parallel and self.seq % parallel:
            raise SchedsimError(
                f"--seq {self.seq} is not a multiple of --tensor-parallel {parallel}",
                hint="sequence parallelism splits the sequence evenly",
            )

    @property
    def ffn_width(self) -> int:
        """Inner width of the MLP."""
        return self.ffn or 4 * self.hidden

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_kv_heads or self.num_heads

    @property
    def kv_width(self) -> int:
        """Width of keys, and of values."""
        return self.hidden // self.num_heads * self.kv_heads

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model, on all tensor-parallel ranks together."""
        return transformer_model(self).num_parameters


def transformer_model(config: TransformerConfig, *, split_layers: bool = False) -> ModelRecord:
    """`config` as op records, a stage per layer, or two (attention, MLP) with `split_layers`.

    Raises
    ------
    SchedsimError
        Sizes do not go together.

    Examples
    --------
    >>> small = TransformerConfig(name="small", num_layers=2, hidden=64, num_heads=4, seq=32)
    >>> [stage.name for stage in transformer_model(small, split_layers=True).stages]
    ['layer0.attention', 'layer0.mlp', 'layer1.attention', 'layer1.mlp']
    """
    config.check()
    blocks = [attention_block(config), mlp_block(config)]
    # The layers are equal: they share their ops, which lets `to_chain` replay one for all.
    layer = blocks if split_layers else [merge_stages("layer", blocks)]
    stages = [_embedding(config)] if config.embedding else []
    for i in range(config.num_layers):
        for part in layer:
            name = f"layer{i}.{part.name}" if split_layers else f"layer{i}"
            stages.append(replace(part, name=name))
    if config.head:
        stages.append(_head(config))
    return ModelRecord(config.name, _input_bytes(config), tuple(stages), config.dtype)


def layer_saved_bytes(config: TransformerConfig) -> int:
    """Activation bytes that one layer keeps, from the op records.

    References
    ----------
    Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models",
    arXiv 2205.05198, equations 1 to 4 and table 2.

    Examples
    --------
    >>> gpt3 = TransformerConfig(name="gpt3", num_layers=1, hidden=12288, num_heads=96, seq=2048)
    >>> layer_saved_bytes(gpt3) == 2048 * 12288 * (34 + 80)
    True
    """
    config.check()
    stage = merge_stages("layer", [attention_block(config), mlp_block(config)])
    made = {t: size for op in stage.forward for t, size in op.writes.items()}
    needed = {t for op in stage.backward for t in op.reads}
    # The input, kept for the first norm, stands for the output, kept by the next layer.
    return made["out"] + sum(size for t, size in made.items() if t in needed and t != "out")


def _input_bytes(config: TransformerConfig) -> int:
    if not config.embedding:
        return units(config)[0] * DTYPE_BYTES[config.dtype]
    if config.patch:
        return 3 * config.image**2 * config.batch * DTYPE_BYTES[config.dtype]
    return 8 * config.seq * config.batch  # token numbers, int64


def _embedding(config: TransformerConfig) -> StageRecord:
    n, _, _ = units(config)
    e, h = DTYPE_BYTES[config.dtype], config.hidden
    gathered = gathered_bytes(config)
    if config.patch:
        pixels = 3 * config.patch**2
        patches = (config.image // config.patch) ** 2
        count = pixels * h + h + h + config.seq * h  # convolution, class token, positions
        flops = 2 * config.batch * patches * pixels * h
        embed = OpRecord("patches", ("in",), {"out": n * e}, flops, pixels * h * e, (), gathered)
        grad = OpRecord("patches'", ("d.out", "in"), {}, flops, 0, (), gathered)
        return StageRecord("embedding", (embed,), (grad,), count)
    count = config.vocab * h + config.positions * h
    # Korthikanti et al., section 4.3: the dropout after the embedding keeps its mask, s b h.
    mask = {"mask": n} if config.dropout else {}
    lookup = OpRecord("lookup", ("in",), {"out": n * e, **mask}, n, 0, tuple(mask), gathered)
    grad = OpRecord("lookup'", ("d.out", *mask, "in"), {}, n, 0, (), gathered)
    return StageRecord("embedding", (lookup,), (grad,), count)


def _head(config: TransformerConfig) -> StageRecord:
    n, tokens, t = units(config)
    e, h = DTYPE_BYTES[config.dtype], config.hidden
    gathered = gathered_bytes(config)
    if config.patch:
        # The class token alone goes on; the head is not split over tensor-parallel ranks.
        flops, weights = linear(config.batch, h, config.classes, True, e)
        logits, count = config.batch * config.classes * 4, h * config.classes + config.classes
    else:
        local_vocab = -(-config.vocab // t)
        flops, weights = linear(tokens, h, local_vocab, False, e)
        # Korthikanti et al., section 4.3: the loss is taken in fp32, 4 s b v / t.
        logits, count = tokens * local_vocab * 4, 0 if config.tied else h * config.vocab
    forward = (
        OpRecord("norm", ("in",), {"n": n * e}, 8 * n),
        OpRecord("logits", ("n",), {"out": logits}, flops, weights, (), gathered),
    )
    backward = (
        OpRecord("logits'", ("d.out", "n"), {"d.n": n * e}, 2 * flops, weights, (), 2 * gathered),
        OpRecord("norm'", ("d.n", "in"), {"d.in": n * e}, 12 * n),
    )
    return StageRecord("head", forward, backward, count + norm_parameters(config))
