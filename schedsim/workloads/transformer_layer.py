"""Attention and MLP blocks op by op, by the accounting of Korthikanti et al. 2022.

Sizes are those of section 4 of the paper: everything that a backward op reads is counted once,
dropout masks take 1 byte an element, statistics of norms (a few bytes per token) are neglected.

What the paper does not say, and is assumed here:

- Attention scores are masked and scaled in place; softmax with dropout keeps its output, the mask
  and the dropped-out weights (the paper's 5 a s^2 b).
- Flash attention (Dao et al. 2022) keeps q, k, v, its output and 4 bytes per row and head; dropout
  masks are drawn again from their seed. Its backward computes five products, not four.
  Where some layers have a window, its products are as many fewer as those of a causal mask are, and
  each layer takes the mean of all.
- Selective recomputation runs scores, softmax and its dropout again, and not the product with v.
- Grouped queries: keys and values have `kv_heads` heads and are never expanded.
- Rotary position codes are applied to q and k in place: no bytes, and no time worth counting.
- The gated MLP is fused as ``silu(g) * u``: it keeps g, u and the product, not ``silu(g)``.
- RMS norm keeps its input, as a layer norm does.
- With sequence parallelism, a shard of a product's input is kept and the whole is gathered again
  for the backward; the gathered (or not yet scattered) s b h elements are a workspace of the op.
- Collectives take no time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .architecture import seen_tokens
from .devices import DTYPE_BYTES
from .ops import OpRecord, StageRecord

if TYPE_CHECKING:
    from .transformer import TransformerConfig


def units(config: TransformerConfig) -> tuple[int, int, int]:
    """(elements of s b h on a rank, tokens, tensor-parallel degree)."""
    tokens = config.seq * config.batch
    split = config.tensor_parallel if config.sequence_parallel else 1
    return tokens * config.hidden // split, tokens, config.tensor_parallel


def gathered_bytes(config: TransformerConfig) -> int:
    """Size of the whole s b h where ranks hold shards of it; 0 without sequence parallelism."""
    whole = config.seq * config.batch * config.hidden * DTYPE_BYTES[config.dtype]
    return whole if config.sequence_parallel else 0


def linear(tokens: int, inner: int, outer: int, bias: bool, dtype_bytes: int) -> tuple[int, int]:
    """Flops of a product and bytes of its weights."""
    return 2 * tokens * inner * outer, (inner * outer + (outer if bias else 0)) * dtype_bytes


def attention_block(config: TransformerConfig) -> StageRecord:
    """Norm, attention, projection and residual; s b h (13 + 5 a s / h) bytes at t = 1."""
    n, tokens, t = units(config)
    gathered = gathered_bytes(config)
    e = DTYPE_BYTES[config.dtype]
    h, s = config.hidden, config.seq
    x = n * e
    q, kv = tokens * h // t * e, tokens * config.kv_width // t * e
    scores = config.batch * config.num_heads // t * s * s
    product = 2 * config.batch * s * s * h // t
    qkv_flops, qkv_bytes = linear(tokens, h, (h + 2 * config.kv_width) // t, config.bias, e)
    proj_flops, proj_bytes = linear(tokens, h // t, h, config.bias, e)
    forward = [
        OpRecord("norm", ("in",), {"n": x}, 8 * n),
        OpRecord("qkv", ("n",), {"q": q, "k": kv, "v": kv}, qkv_flops, qkv_bytes, (), gathered),
    ]
    backward: list[OpRecord] = []
    if config.attention == "flash":
        seen = round(2 * seen_tokens(s, config.window, config.windowed_share))
        product = 2 * config.batch * s * seen * h // t
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
        OpRecord("proj", ("c",), {"o": x}, proj_flops, proj_bytes, (), gathered),
        _residual("o", n, e, config.dropout),
    ]
    into_proj = (_grad("o", config), "c")
    into_qkv = ("d.q", "d.k", "d.v", "n")
    backward = [
        *_residual_backward("o", n, e, config.dropout),
        OpRecord("proj'", into_proj, {"d.c": q}, 2 * proj_flops, proj_bytes, (), gathered),
        *backward,
        # Both the input, gathered again, and its gradient, not yet scattered.
        OpRecord("qkv'", into_qkv, {"d.n": x}, 2 * qkv_flops, qkv_bytes, (), 2 * gathered),
        OpRecord("norm'", ("d.n", "in", "d.out"), {"d.in": x}, 12 * n),
    ]
    biases = 2 * h + 2 * config.kv_width if config.bias else 0
    count = 2 * h * h + 2 * h * config.kv_width + biases + norm_parameters(config)
    if config.attention == "selective":
        backward = _with_core_again(forward, backward)
    return StageRecord("attention", tuple(forward), tuple(backward), count)


def _with_core_again(forward: list[OpRecord], backward: list[OpRecord]) -> list[OpRecord]:
    """`backward` with what it reads of the core recomputed before its first reader."""
    core = [op for op in forward if op.name in ("scores", "softmax", "softmax_dropout")]
    again = {tensor: f"{tensor}.again" for op in core for tensor in op.writes}
    changed = [replace(op, reads=tuple(again.get(t, t) for t in op.reads)) for op in backward]
    first = next(i for i, op in enumerate(changed) if set(op.reads) & set(again.values()))
    repeats = [
        OpRecord(
            f"{op.name} again",
            tuple(again.get(t, t) for t in op.reads),
            {again[t]: size for t, size in op.writes.items()},
            op.flops,
        )
        for op in core
    ]
    return [*changed[:first], *repeats, *changed[first:]]


def mlp_block(config: TransformerConfig) -> StageRecord:
    """Norm, MLP and residual; 21 s b h bytes at t = 1 and width 4 h."""
    n, tokens, t = units(config)
    gathered = gathered_bytes(config)
    e = DTYPE_BYTES[config.dtype]
    h, f = config.hidden, config.ffn_width
    x, wide = n * e, tokens * f // t * e
    up_flops, up_bytes = linear(tokens, h, f // t, config.bias, e)
    down_flops, down_bytes = linear(tokens, f // t, h, config.bias, e)
    elements = tokens * f // t
    inner = {"g": wide, "u": wide} if config.gated else {"g": wide}
    ways = len(inner)
    act = "silu_mul" if config.gated else "gelu"
    forward = (
        OpRecord("norm", ("in",), {"n": x}, 8 * n),
        OpRecord("up", ("n",), inner, ways * up_flops, ways * up_bytes, (), gathered),
        OpRecord(act, tuple(inner), {"m": wide}, 10 * elements),
        OpRecord("down", ("m",), {"o": x}, down_flops, down_bytes, (), gathered),
        _residual("o", n, e, config.dropout),
    )
    grads = {f"d.{name}": size for name, size in inner.items()}
    into_down, into_up = (_grad("o", config), "m"), (*grads, "n")
    up_flops, up_bytes = ways * up_flops, ways * up_bytes
    backward = (
        *_residual_backward("o", n, e, config.dropout),
        OpRecord("down'", into_down, {"d.m": wide}, 2 * down_flops, down_bytes, (), gathered),
        OpRecord(f"{act}'", ("d.m", *inner), grads, 15 * elements),
        OpRecord("up'", into_up, {"d.n": x}, 2 * up_flops, up_bytes, (), 2 * gathered),
        OpRecord("norm'", ("d.n", "in", "d.out"), {"d.in": x}, 12 * n),
    )
    count = (ways + 1) * h * f + (h + f if config.bias else 0) + norm_parameters(config)
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


def norm_parameters(config: TransformerConfig) -> int:
    """Gain, and shift unless it is an RMS norm."""
    return config.hidden if config.rms_norm else 2 * config.hidden
