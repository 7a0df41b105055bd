"""Decoders that benchmarks train on the dry CUDA device, written from published sizes.

A decoder of the Llama family, as torchtitan and torchtune train it, whole or with low-rank
adapters (LoRA, Hu et al. 2021). Both train the same sizes. What their layers hold for the backward
differs in the norm and in the rotary positions, so both forms are here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

LORA_RANK, LORA_SHARE = 64, 2.0


@dataclass(frozen=True)
class Sizes:
    """The sizes of a decoder; those of Llama 3 are in table 3 of Dubey et al. 2024.

    Attributes
    ----------
    tied
        Whether logits are made with the embedding's table.
    rank
        Rank of the adapters; 0 trains the weights themselves.
    few
        Whether only query and value have adapters; if not, the feed-forward network and the product
        after attention have them too.
    real
        Whether rotary positions and norms are computed in single precision step by step (as
        torchtune does), or by complex numbers and torch's own norm (as torchtitan does).
    stepwise
        Whether norms are computed in single precision step by step (torchtitan in March 2024).
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int = 128256
    tied: bool = False
    rank: int = 0
    few: bool = False
    real: bool = False
    stepwise: bool = False

    @property
    def more_rank(self) -> int:
        """Rank of the adapters beyond query and value."""
        return 0 if self.few else self.rank

    @property
    def width(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads


SIZES = {
    "llama3-8b": Sizes(32, 4096, 32, 8, 14336),
    "llama3-70b": Sizes(80, 8192, 64, 8, 28672),
    "llama3-405b": Sizes(126, 16384, 128, 8, 53248),
    "llama2-7b": Sizes(32, 4096, 32, 32, 11008, vocab=32000),
    "llama3.2-3b": Sizes(28, 3072, 24, 8, 8192, tied=True),
}


def adapted(sizes: Sizes, rank: int, *, few: bool) -> Sizes:
    """`sizes` with adapters of `rank`."""
    return replace(sizes, rank=rank, few=few)


class Adapted(nn.Module):
    """A frozen product beside a trained one of low rank."""

    def __init__(self, given: int, made: int, rank: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(made, given), requires_grad=False)
        self.down, self.up = linear(given, rank), linear(rank, made)

    def forward(self, x: Tensor) -> Tensor:
        """The product, whose last axis has `made` entries in place of `given`."""
        out: Tensor = functional.linear(x, self.weight)
        return out + LORA_SHARE * self.up(self.down(x))


def linear(given: int, made: int, rank: int = 0) -> nn.Module:
    """A product without a bias; with adapters of `rank`."""
    return Adapted(given, made, rank) if rank else nn.Linear(given, made, bias=False)


class StepwiseNorm(nn.Module):
    """Root mean square in single precision, one operation after another."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        whole = x.float()
        normed = (whole * torch.rsqrt(whole.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x)
        return normed * self.scale


def norm(sizes: Sizes) -> nn.Module:
    """Over the hidden axis."""
    if sizes.real or sizes.stepwise:
        return StepwiseNorm(sizes.hidden)
    return nn.RMSNorm(sizes.hidden, eps=1e-5)


def turned(x: Tensor, turn: Tensor) -> Tensor:
    """Rotary positions: by complex numbers, or by their parts where `turn` is real."""
    if turn.is_complex():
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turn).flatten(3).type_as(x)
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cosine, sine = turn.unbind(-1)
    parts = [even * cosine - odd * sine, odd * cosine + even * sine]
    return torch.stack(parts, -1).flatten(3).type_as(x)


class Attention(nn.Module):
    """Causal, with grouped keys."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.width, self.groups = sizes.width, sizes.heads // sizes.kv_heads
        hidden, narrow = sizes.hidden, sizes.kv_heads * sizes.width
        self.query = linear(hidden, hidden, sizes.rank)
        self.out = linear(hidden, hidden, sizes.more_rank)
        self.key, self.value = linear(hidden, narrow), linear(hidden, narrow, sizes.rank)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        """Same shape."""
        batch, seq, _ = x.shape
        rows = (self.query(x), self.key(x), self.value(x))
        query, key, value = (row.view(batch, seq, -1, self.width) for row in rows)
        query, key = turned(query, turn), self._repeated(turned(key, turn))
        heads = (one.transpose(1, 2) for one in (query, key, self._repeated(value)))
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).contiguous().view(batch, seq, -1))
        return out

    def _repeated(self, x: Tensor) -> Tensor:
        """Keys or values, copied for every head of their group."""
        wide = x[:, :, :, None, :].expand(*x.shape[:3], self.groups, self.width)
        return wide.reshape(*x.shape[:2], -1, self.width)


class FeedForward(nn.Module):
    """Gated."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        hidden, ffn, rank = sizes.hidden, sizes.ffn, sizes.more_rank
        self.gate, self.up = (linear(hidden, ffn, rank) for _ in range(2))
        self.down = linear(ffn, hidden, rank)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        out: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return out


class DecoderLayer(nn.Module):
    """Attention and a feed-forward network, each with a norm before it and a sum behind it."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(sizes), FeedForward(sizes)
        self.norm1, self.norm2 = norm(sizes), norm(sizes)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        """Same shape."""
        x = x + self.attention(self.norm1(x), turn)
        out: Tensor = x + self.feed_forward(self.norm2(x))
        return out


class Decoder(nn.Module):
    """From tokens ``(batch, seq)`` to logits ``(batch, seq, vocab)``, whole or in pieces."""

    def __init__(self, sizes: Sizes, seq: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocab, sizes.hidden)
        self.layers = nn.ModuleList(DecoderLayer(sizes) for _ in range(sizes.layers))
        self.norm = norm(sizes)
        self.output = linear(sizes.hidden, sizes.vocab)
        if sizes.tied:
            self.output.weight = self.embedding.weight
        self.in_single = sizes.real  # torchtune hands logits on in single precision, if whole
        half = sizes.width // 2
        turn = (
            torch.empty(1, seq, 1, half, 2)
            if sizes.real
            else torch.empty(1, seq, 1, half, dtype=torch.complex64)
        )
        self.register_buffer("turn", turn, persistent=False)

    def forward(self, tokens: Tensor, pieces: int = 1) -> list[Tensor]:
        """Logits of each piece of the sequence."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.turn)
        if pieces == 1 and self.in_single:
            return [self.output(self.norm(x)).float()]
        return [self.output(piece) for piece in self.norm(x).tensor_split(pieces, dim=1)]
