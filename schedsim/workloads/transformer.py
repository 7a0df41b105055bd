"""Transformers op by op, by the accounting of Korthikanti et al. 2022.

Sizes are those of table 2 and section 4 of the paper: 2-byte activations, 1-byte dropout masks,
everything that a backward op reads counted once, statistics of norms neglected. With
``s`` tokens, micro-batch ``b``, width ``h`` and ``a`` heads, a layer keeps
``s b h (34 + 5 a s / h)`` bytes. Collectives of tensor parallelism take no time here.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import SchedsimError
from .devices import DTYPE_BYTES
from .ops import ModelRecord, OpRecord, StageRecord, merge_stages


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
        (Dao et al. 2022) and pays five products in the backward.
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
    patch: int = 0
    image: int = 0
    classes: int = 0

    def check(self) -> None:
        """Raise `SchedsimError` naming the option and its value where two do not go together."""
        counts = ("num_layers", "hidden", "num_heads", "seq", "batch", "tensor_parallel")
        for field in counts:
            if getattr(self, field) < 1:
                option = field.removeprefix("num_").replace("_", "-")
                raise SchedsimError(f"--{option} {getattr(self, field)} is not at least 1")
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
        if self.sequence_parallel and parallel == 1:
            raise SchedsimError(
                "--sequence-parallel needs tensor parallelism",
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
    def layer_parameters(self) -> int:
        """Parameters of one layer; 12 h^2 + 13 h for a GPT."""
        h, f = self.hidden, self.ffn_width
        norm = h if self.rms_norm else 2 * h
        matrices = 2 * h * h + 2 * h * self.kv_width + (3 if self.gated else 2) * h * f
        biases = 2 * h + 2 * self.kv_width + h + f if self.bias else 0
        return matrices + biases + 2 * norm

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model, on all tensor-parallel ranks together."""
        return transformer_model(self).num_parameters


def transformer_model(config: TransformerConfig, *, split_layers: bool = False) -> ModelRecord:
    """`config` as op records, a stage per layer, or two (attention, MLP) with `split_layers`."""
    config.check()
    stages = []
    if config.embedding:
        stages.append(_embedding(config))
    for i in range(config.num_layers):
        parts = [_attention_block(config), _mlp_block(config)]
        if split_layers:
            stages += [
                StageRecord(f"layer{i}.{p.name}", p.forward, p.backward, p.num_parameters)
                for p in parts
            ]
        else:
            stages.append(merge_stages(f"layer{i}", parts))
    if config.head:
        stages.append(_head(config))
    return ModelRecord(config.name, _input_bytes(config), tuple(stages), config.dtype)


def layer_saved_bytes(config: TransformerConfig) -> int:
    """Activation bytes that one layer keeps, from the op records.

    Examples
    --------
    >>> gpt3 = TransformerConfig(name="gpt3", num_layers=1, hidden=12288, num_heads=96, seq=2048)
    >>> layer_saved_bytes(gpt3) == 2048 * 12288 * (34 + 80)
    True
    """
    stage = merge_stages("layer", [_attention_block(config), _mlp_block(config)])
    made = {t: size for op in stage.forward for t, size in op.writes.items()}
    needed = {t for op in stage.backward for t in op.reads}
    # The input, kept for the first norm, stands for the output, kept by the next layer.
    return made["out"] + sum(size for t, size in made.items() if t in needed and t != "out")


def _units(config: TransformerConfig) -> tuple[int, int, int]:
    """(elements of s b h on a rank, tokens, tensor-parallel degree)."""
    tokens = config.seq * config.batch
    split = config.tensor_parallel if config.sequence_parallel else 1
    return tokens * config.hidden // split, tokens, config.tensor_parallel


def _linear(tokens: int, inner: int, outer: int, bias: bool, dtype_bytes: int) -> tuple[int, int]:
    """Flops of a product and bytes of its weights."""
    return 2 * tokens * inner * outer, (inner * outer + (outer if bias else 0)) * dtype_bytes


def _attention_block(config: TransformerConfig) -> StageRecord:
    n, tokens, t = _units(config)
    e = DTYPE_BYTES[config.dtype]
    h, s = config.hidden, config.seq
    x = n * e
    q, kv = tokens * h // t * e, tokens * config.kv_width // t * e
    scores = config.batch * config.num_heads // t * s * s
    product = 2 * config.batch * s * s * h // t
    qkv_flops, qkv_bytes = _linear(tokens, h, (h + 2 * config.kv_width) // t, config.bias, e)
    proj_flops, proj_bytes = _linear(tokens, h // t, h, config.bias, e)
    forward = [
        OpRecord("norm", ("in",), {"n": x}, 8 * n),
        OpRecord("qkv", ("n",), {"q": q, "k": kv, "v": kv}, qkv_flops, qkv_bytes),
    ]
    backward: list[OpRecord] = []
    if config.attention == "flash":
        stats = 4 * config.batch * config.num_heads // t * s
        forward.append(
            OpRecord("attention", ("q", "k", "v"), {"c": q, "lse": stats}, 2 * product, 0, ("lse",))
        )
        grads = {"d.q": q, "d.k": kv, "d.v": kv}
        reads = ("d.c", "q", "k", "v", "c", "lse")
        backward.append(OpRecord("attention'", reads, grads, 5 * product))
    else:
        weights = "pd" if config.dropout else "p"
        forward += [
            OpRecord("scores", ("q", "k"), {"s": scores * e}, product),
            OpRecord("softmax", ("s",), {"p": scores * e}, 5 * scores),
        ]
        if config.dropout:
            writes = {"pm": scores, "pd": scores * e}
            forward.append(OpRecord("softmax_dropout", ("p",), writes, scores, 0, ("pm",)))
        forward.append(OpRecord("context", (weights, "v"), {"c": q}, product))
        writes = {f"d.{weights}": scores * e, "d.v": kv}
        backward.append(OpRecord("context'", ("d.c", weights, "v"), writes, 2 * product))
        if config.dropout:
            grad = {"d.p": scores * e}
            backward.append(OpRecord("softmax_dropout'", ("d.pd", "pm"), grad, scores))
        backward += [
            OpRecord("softmax'", ("d.p", "p"), {"d.s": scores * e}, 4 * scores),
            OpRecord("scores'", ("d.s", "q", "k"), {"d.q": q, "d.k": kv}, 2 * product),
        ]
    forward += [
        OpRecord("proj", ("c",), {"o": x}, proj_flops, proj_bytes),
        _residual("o", n, e, config.dropout),
    ]
    start = _residual_backward("o", n, e, config.dropout)
    backward = [
        *start,
        OpRecord("proj'", (_grad("o", config), "c"), {"d.c": q}, 2 * proj_flops, proj_bytes),
        *backward,
        OpRecord("qkv'", ("d.q", "d.k", "d.v", "n"), {"d.n": x}, 2 * qkv_flops, qkv_bytes),
        OpRecord("norm'", ("d.n", "in", "d.out"), {"d.in": x}, 12 * n),
    ]
    f = config.ffn_width
    mlp = (3 if config.gated else 2) * h * f + (h + f if config.bias else 0)
    norm = h if config.rms_norm else 2 * h
    count = config.layer_parameters - mlp - norm
    return StageRecord("attention", tuple(forward), tuple(backward), count)


def _mlp_block(config: TransformerConfig) -> StageRecord:
    n, tokens, t = _units(config)
    e = DTYPE_BYTES[config.dtype]
    h, f = config.hidden, config.ffn_width
    x, wide = n * e, tokens * f // t * e
    up_flops, up_bytes = _linear(tokens, h, f // t, config.bias, e)
    down_flops, down_bytes = _linear(tokens, f // t, h, config.bias, e)
    elements = tokens * f // t
    inner = {"g": wide, "u": wide} if config.gated else {"g": wide}
    ways = len(inner)
    act = "silu_mul" if config.gated else "gelu"
    forward = (
        OpRecord("norm", ("in",), {"n": x}, 8 * n),
        OpRecord("up", ("n",), inner, ways * up_flops, ways * up_bytes),
        OpRecord(act, tuple(inner), {"m": wide}, 10 * elements),
        OpRecord("down", ("m",), {"o": x}, down_flops, down_bytes),
        _residual("o", n, e, config.dropout),
    )
    grads = {f"d.{name}": size for name, size in inner.items()}
    backward = (
        *_residual_backward("o", n, e, config.dropout),
        OpRecord("down'", (_grad("o", config), "m"), {"d.m": wide}, 2 * down_flops, down_bytes),
        OpRecord(f"{act}'", ("d.m", *inner), grads, 15 * elements),
        OpRecord("up'", (*grads, "n"), {"d.n": x}, 2 * ways * up_flops, ways * up_bytes),
        OpRecord("norm'", ("d.n", "in", "d.out"), {"d.in": x}, 12 * n),
    )
    norm = h if config.rms_norm else 2 * h
    count = (3 if config.gated else 2) * h * f + (h + f if config.bias else 0) + norm
    return StageRecord("mlp", forward, backward, count)


def _residual(branch: str, elements: int, dtype_bytes: int, dropout: bool) -> OpRecord:
    """Dropout of the branch, added to the block's input."""
    writes = {"out": elements * dtype_bytes}
    if dropout:
        writes["mask"] = elements
    optional = ("mask",) if dropout else ()
    return OpRecord("residual", (branch, "in"), writes, 2 * elements, 0, optional)


def _residual_backward(
    branch: str, elements: int, dtype_bytes: int, dropout: bool
) -> tuple[OpRecord, ...]:
    if not dropout:
        return ()  # the branch's gradient is the output's
    writes = {f"d.{branch}": elements * dtype_bytes}
    return (OpRecord("residual'", ("d.out", "mask"), writes, elements),)


def _grad(branch: str, config: TransformerConfig) -> str:
    return f"d.{branch}" if config.dropout else "d.out"


def _input_bytes(config: TransformerConfig) -> int:
    if not config.embedding:
        return _units(config)[0] * DTYPE_BYTES[config.dtype]
    if config.patch:
        return 3 * config.image**2 * config.batch * DTYPE_BYTES[config.dtype]
    return 8 * config.seq * config.batch  # token numbers, int64


def _embedding(config: TransformerConfig) -> StageRecord:
    n, _, _ = _units(config)
    e = DTYPE_BYTES[config.dtype]
    h = config.hidden
    if config.patch:
        pixels = 3 * config.patch**2
        patches = (config.image // config.patch) ** 2
        count = pixels * h + h + h + config.seq * h  # convolution, class token, positions
        flops = 2 * config.batch * patches * pixels * h
        embed = OpRecord("patches", ("in",), {"out": n * e}, flops, pixels * h * e)
        grad = OpRecord("patches'", ("d.out", "in"), {}, flops)
        return StageRecord("embedding", (embed,), (grad,), count)
    count = config.vocab * h + config.positions * h
    writes, optional = {"out": n * e}, ()
    if config.dropout:
        writes["mask"] = n
        optional = ("mask",)  # type: ignore[assignment]
    lookup = OpRecord("lookup", ("in",), writes, n, 0, optional)
    reads = ("d.out", "mask", "in") if config.dropout else ("d.out", "in")
    return StageRecord("embedding", (lookup,), (OpRecord("lookup'", reads, {}, n),), count)


def _head(config: TransformerConfig) -> StageRecord:
    n, tokens, t = _units(config)
    e = DTYPE_BYTES[config.dtype]
    h = config.hidden
    norm = h if config.rms_norm else 2 * h
    if config.patch:
        flops, weights = _linear(config.batch, h, config.classes, True, e)
        logits, count = config.batch * config.classes * 4, h * config.classes + config.classes
    else:
        flops, weights = _linear(tokens, h, -(-config.vocab // t), False, e)
        # Korthikanti et al., section 4.3: the loss is taken in fp32, 4 s b v / t.
        logits, count = tokens * -(-config.vocab // t) * 4, 0 if config.tied else h * config.vocab
    forward = (
        OpRecord("norm", ("in",), {"n": n * e}, 8 * n),
        OpRecord("logits", ("n",), {"out": logits}, flops, weights),
    )
    backward = (
        OpRecord("logits'", ("d.out", "n"), {"d.n": n * e}, 2 * flops, weights),
        OpRecord("norm'", ("d.n", "in"), {"d.in": n * e}, 12 * n),
    )
    return StageRecord("head", forward, backward, count + norm)
