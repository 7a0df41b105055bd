"""Three changes that cost memory, each as (before, after): functions that build the step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Head(nn.Module):
    def __init__(self, width=64, words=4000):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.logits = nn.Linear(width, words, bias=False)

    def forward(self, ids):
        return self.logits(self.embed(ids))


def cross_entropy(logits, target):
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def with_z_loss(logits, target):
    """The auxiliary loss of PaLM: autograd keeps the logits, beside their softmax."""
    return cross_entropy(logits, target) + 1e-4 * logits.logsumexp(-1).square().mean()


def head(loss):
    ids = torch.zeros(8, 128, dtype=torch.long)
    return Head(), (ids, ids), loss


class Block(nn.Module):
    def __init__(self, fused, width=64, heads=8):
        super().__init__()
        self.fused, self.heads = fused, heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v)
        else:  # somebody wanted to look at the weights
            weights = (q @ k.mT * (width // self.heads) ** -0.5).softmax(-1)
            y = weights @ v
        return x + self.out(y.transpose(1, 2).reshape(batch, length, width))


class Layers(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.layers = nn.ModuleList(block() for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def attention(fused):
    return Layers(lambda: Block(fused)), (torch.zeros(2, 256, 64),), lambda y: y.square().mean()


class RecomputingMlp(torch.autograd.Function):
    """Keeps its input alone and runs the forward again: checkpointing written by hand."""

    @staticmethod
    def forward(ctx, x, wide, narrow):
        ctx.save_for_backward(x, wide, narrow)
        return x + F.gelu(x @ wide) @ narrow

    @staticmethod
    def backward(ctx, gradient):
        x, wide, narrow = ctx.saved_tensors
        hidden = x @ wide
        inner = torch.ops.aten.gelu_backward(gradient @ narrow.mT, hidden)
        return gradient + inner @ wide.mT, x.mT @ inner, F.gelu(hidden).mT @ gradient


class Mlp(nn.Module):
    def __init__(self, by_hand, width=64):
        super().__init__()
        self.by_hand = by_hand
        self.wide = nn.Parameter(torch.zeros(width, 4 * width))
        self.narrow = nn.Parameter(torch.zeros(4 * width, width))

    def body(self, x):
        return x + F.gelu(x @ self.wide) @ self.narrow

    def forward(self, x):
        if self.by_hand:
            return RecomputingMlp.apply(x, self.wide, self.narrow)
        from torch.utils.checkpoint import checkpoint

        return checkpoint(self.body, x, use_reentrant=False)


def compiled(by_hand):
    model = Layers(lambda: Mlp(by_hand))
    return torch.compile(model), (torch.zeros(512, 64),), lambda y: y.square().mean()


STORIES = {
    "logits kept twice": (lambda: head(cross_entropy), lambda: head(with_z_loss)),
    "attention lost its fused kernel": (lambda: attention(True), lambda: attention(False)),
    "compile undid checkpointing": (lambda: compiled(False), lambda: compiled(True)),
}
