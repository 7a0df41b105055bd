"""Mixtral (Jiang et al. 2024, arXiv 2401.04088): Llama with experts in the feed-forward network."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .llama import LlamaBlock, LlamaHead
from .losses import CrossEntropy, class_targets
from .workload import Workload, builder, check_multiple


class Experts(nn.Module):
    """Gated feed-forward networks, of which each takes an equal share of the choices.

    Real routing with a loss that balances it comes near to equal shares; here they are equal, so
    that sizes do not depend on values. Choices are sorted by expert, and what is over an expert's
    share goes to the next.
    """

    def __init__(self, hidden: int, ffn: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.chosen, self.experts = chosen, experts
        self.router = nn.Linear(hidden, experts, bias=False)
        self.gate = nn.Parameter(torch.empty(experts, hidden, ffn))
        self.up = nn.Parameter(torch.empty(experts, hidden, ffn))
        self.down = nn.Parameter(torch.empty(experts, ffn, hidden))

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, seq, hidden)`` to the same."""
        rows = x.flatten(0, 1)
        scores = self.router(rows).softmax(-1, dtype=torch.float32)
        weights, choice = scores.topk(self.chosen)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        order = choice.flatten().argsort(stable=True)
        taken = rows[order // self.chosen].view(self.experts, -1, rows.shape[1])
        inner = functional.silu(taken @ self.gate) * (taken @ self.up)
        out = (inner @ self.down).view(-1, rows.shape[1])
        back = out[order.argsort()].view(-1, self.chosen, rows.shape[1])
        mixed: Tensor = (back * weights[:, :, None]).sum(1)
        return mixed.view_as(x)


class MixtralBlock(LlamaBlock):
    """A Llama block with experts."""

    FEED_FORWARD = ()
    """None: shares of a part of the tokens are not those of all."""

    def __init__(self, sizes: tuple[int, int, int, int], theta: float, routed: Experts) -> None:
        super().__init__(*sizes, theta)
        del self.gate, self.up, self.down
        self.experts = routed

    def feed_forward(self, x: Tensor) -> Tensor:
        """The experts that its router chooses for each token."""
        fed: Tensor = self.experts(x)
        return fed


@builder
def build_mixtral(
    *,
    layers: int = 32,
    hidden: int = 4096,
    heads: int = 32,
    kv_heads: int = 8,
    ffn: int = 14336,
    vocab: int = 32000,
    experts: int = 8,
    chosen: int = 2,
    seq: int = 4096,
    batch: int = 1,
) -> Workload:
    """A Mixtral of any size; the defaults are 8x7B, 46,702,792,704 parameters."""
    check_multiple("hidden", hidden, "heads", heads)
    check_multiple("heads", heads, "kv_heads", kv_heads)
    check_multiple("batch * seq * chosen", batch * seq * chosen, "experts", experts)
    blocks = [
        MixtralBlock((hidden, heads, kv_heads, ffn), 1e6, Experts(hidden, ffn, experts, chosen))
        for _ in range(layers)
    ]
    model = nn.Sequential(nn.Embedding(vocab, hidden), *blocks, LlamaHead(hidden, vocab))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    ids = class_targets(vocab, batch, seq)
    return Workload(model, (ids,), CrossEntropy(class_targets(vocab, batch, seq)))
