"""The GPT-2 family (Radford et al. 2019): pre-norm blocks, learned positions, tied embedding."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .losses import CrossEntropy, class_targets
from .workload import Workload, builder, check_multiple


class Embedding(nn.Module):
    """Token and position embeddings, summed, with dropout."""

    def __init__(self, vocab: int, positions: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = nn.Embedding(positions, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor) -> Tensor:
        """``(batch, seq)`` token numbers to ``(batch, seq, hidden)``."""
        place = torch.arange(ids.shape[1], device=ids.device)
        summed: Tensor = self.dropout(self.tokens(ids) + self.positions(place))
        return summed


class GPT2Block(nn.Module):
    """Causal self-attention and a GELU feed-forward of four times the width."""

    FEED_FORWARD = ("wide", "narrow")
    """Modules that `feed_forward` runs."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.projection = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.wide, self.narrow = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, seq, hidden)`` to the same."""
        x = x + self._dropped(self.projection(self._attention(self.norm1(x))))
        return x + self._dropped(self.feed_forward(self.norm2(x)))

    def feed_forward(self, x: Tensor) -> Tensor:
        """The two layers that work on each token by itself."""
        inner = functional.gelu(self.wide(x), approximate="tanh")
        fed: Tensor = self.narrow(inner)
        return fed

    def _attention(self, x: Tensor) -> Tensor:
        batch, seq, hidden = x.shape
        split = self.qkv(x).view(batch, seq, 3, self.heads, hidden // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        drop = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=drop, is_causal=True
        )
        return mixed.transpose(1, 2).reshape(batch, seq, hidden)

    def _dropped(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training)


class GPT2Head(nn.Module):
    """Last norm and the projection to the vocabulary, with the embedding's weight where tied."""

    def __init__(self, hidden: int, vocab: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.logits = nn.Linear(hidden, vocab, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, seq, hidden)`` to ``(batch, seq, vocab)``."""
        scores: Tensor = self.logits(self.norm(x))
        return scores


@builder
def build_gpt2(
    *,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    vocab: int = 50257,
    positions: int = 1024,
    seq: int = 1024,
    batch: int = 1,
    dropout: float = 0.1,
    tied: bool = True,
) -> Workload:
    """A GPT-2 of any size; the defaults are the smallest of the paper, 124,439,808 parameters."""
    check_multiple("hidden", hidden, "heads", heads)
    embedding = Embedding(vocab, max(positions, seq), hidden, dropout)
    head = GPT2Head(hidden, vocab)
    blocks = [GPT2Block(hidden, heads, dropout) for _ in range(layers)]
    model = nn.Sequential(embedding, *blocks, head)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    if tied:
        head.logits.weight = embedding.tokens.weight
    ids = class_targets(vocab, batch, seq)
    return Workload(model, (ids,), CrossEntropy(class_targets(vocab, batch, seq)))
