"""The Llama family (Touvron et al. 2023): RMS norm, rotary positions, gated feed-forward."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .losses import CrossEntropy, class_targets
from .low_rank import adapt
from .workload import Workload, builder, check_multiple


class LlamaBlock(nn.Module):
    """Causal attention with rotary positions and grouped keys, and a SwiGLU feed-forward."""

    FEED_FORWARD: tuple[str, ...] = ("gate", "up", "down")
    """Modules that `feed_forward` runs."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, ffn: int, theta: float) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.theta = heads, kv_heads, theta
        self.width = hidden // heads
        self.norm1, self.norm2 = nn.RMSNorm(hidden, eps=1e-5), nn.RMSNorm(hidden, eps=1e-5)
        self.query = nn.Linear(hidden, heads * self.width, bias=False)
        self.key = nn.Linear(hidden, kv_heads * self.width, bias=False)
        self.value = nn.Linear(hidden, kv_heads * self.width, bias=False)
        self.projection = nn.Linear(heads * self.width, hidden, bias=False)
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, seq, hidden)`` to the same."""
        x = x + self.projection(self._attention(self.norm1(x)))
        return x + self.feed_forward(self.norm2(x))

    def feed_forward(self, x: Tensor) -> Tensor:
        """The gated layers that work on each token by itself."""
        fed: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return fed

    def _attention(self, x: Tensor) -> Tensor:
        batch, seq, _ = x.shape
        query = self._split(self.query(x), self.heads)
        key = self._split(self.key(x), self.kv_heads)
        value = self._split(self.value(x), self.kv_heads)
        turn = _angles(seq, self.width, self.theta, x)
        mixed = functional.scaled_dot_product_attention(
            _rotated(query, turn),
            _rotated(key, turn),
            value,
            is_causal=True,
            enable_gqa=self.kv_heads != self.heads,
        )
        return mixed.transpose(1, 2).reshape(batch, seq, self.heads * self.width)

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(x.shape[0], x.shape[1], heads, self.width).transpose(1, 2)


def _angles(seq: int, width: int, theta: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines, ``(seq, width / 2)`` each, in the number format of `like`."""
    rates = theta ** (-torch.arange(0, width, 2, device=like.device).float() / width)
    turn = torch.outer(torch.arange(seq, device=like.device).float(), rates)
    return turn.cos().to(like.dtype), turn.sin().to(like.dtype)


def _rotated(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    cosine, sine = turn
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


class LlamaHead(nn.Module):
    """Last norm and the projection to the vocabulary."""

    def __init__(self, hidden: int, vocab: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(hidden, eps=1e-5)
        self.logits = nn.Linear(hidden, vocab, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, seq, hidden)`` to ``(batch, seq, vocab)``."""
        scores: Tensor = self.logits(self.norm(x))
        return scores


@builder
def build_llama(
    *,
    layers: int = 32,
    hidden: int = 4096,
    heads: int = 32,
    kv_heads: int | None = None,
    ffn: int = 11008,
    vocab: int = 32000,
    theta: float = 10000.0,
    seq: int = 4096,
    batch: int = 1,
    tied: bool = False,
    lora: int | None = None,
) -> Workload:
    """A Llama of any size; the defaults are the 7B of Llama 2, 6,738,415,616 parameters.

    `lora` is the rank of adapters of query and value; all else is then frozen.
    """
    check_multiple("hidden", hidden, "heads", heads)
    check_multiple("heads", heads, "kv_heads", kv_heads or heads)
    embedding = nn.Embedding(vocab, hidden)
    blocks = [LlamaBlock(hidden, heads, kv_heads or heads, ffn, theta) for _ in range(layers)]
    head = LlamaHead(hidden, vocab)
    model = nn.Sequential(embedding, *blocks, head)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    if tied:
        head.logits.weight = embedding.weight
    if lora:
        adapt(model, ("query", "value"), lora)
    ids = class_targets(vocab, batch, seq)
    return Workload(model, (ids,), CrossEntropy(class_targets(vocab, batch, seq)))
