"""How unevenly the routers of a fresh model spread tokens over ranks that split its experts.

A model as torchtitan's DeepSeek 16B is trained from its first step: 64 experts of which a token
takes six, scores by a softmax, balanced by biases that go up or down by 0.001 a step, AdamW with a
rate that rises linearly. It is smaller: 512 numbers wide where 2,048 are, with 8 layers of 27 at
even distances (each initialised as its original), rates of matrices and initial sizes scaled so
that outputs move as fast in a step, and words of plain text for tokens. Printed is the share of the
rank with the most tokens over the mean share of 8 ranks, a mean over layers, for each step.

    python benchmarks/router_spread.py --warmup 20 --steps 20 TEXT ...
"""

from __future__ import annotations

import argparse
import collections
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, LAYERS, OF_LAYERS, OF_WIDTH = 512, 8, 27, 2048
EXPERTS, ACTIVE, RANKS, EXPERT_WIDTH = 64, 6, 8, 96
WORDS, TOKENS, SEQUENCE = 8192, 4096, 512
RATE, STEP_OF_BIAS = 2.2e-4, 1e-3
_WIDER = OF_WIDTH / WIDTH


class GatedMlp(nn.Module):
    """A gated MLP, initialised for a layer."""

    def __init__(self, width: int, std: float) -> None:
        super().__init__()
        sizes = ((WIDTH, width), (width, WIDTH), (WIDTH, width))
        self.parts = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in sizes)
        for part, size in zip(self.parts, (_std(), std, std), strict=True):
            nn.init.trunc_normal_(part.weight, std=size)

    def forward(self, x: Tensor) -> Tensor:
        gate, down, up = self.parts
        return down(F.silu(gate(x)) * up(x))


class Layer(nn.Module):
    """Attention and an MLP, dense or of experts; `count` are the tokens of each expert."""

    def __init__(self, number: int) -> None:
        super().__init__()
        std = _std() / (2 * (number + 1)) ** 0.5
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = (nn.Linear(WIDTH, k * WIDTH, bias=False) for k in (3, 1))
        nn.init.trunc_normal_(self.qkv.weight, std=_std())
        nn.init.trunc_normal_(self.out.weight, std=std)
        self.shared = GatedMlp((2 if number else 8) * EXPERT_WIDTH, std)
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False) if number else None
        if self.gate is not None:
            nn.init.trunc_normal_(self.gate.weight, std=std)
            self.experts = nn.ModuleList(GatedMlp(EXPERT_WIDTH, std) for _ in range(EXPERTS))
            self.bias = torch.zeros(EXPERTS)
        self.count = torch.zeros(EXPERTS)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        qkv = self.qkv(self.norms[0](x)).view(rows, length, 3, WIDTH // 64, 64)
        mixed = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        given = self.norms[1](x).reshape(-1, WIDTH)
        made = self.shared(given)
        if self.gate is not None:
            made = made + self._routed(given)
        return x + made.view(x.shape)

    def _routed(self, given: Tensor) -> Tensor:
        assert self.gate is not None
        scores = F.softmax(self.gate(given).float(), dim=1)
        chosen = torch.topk(scores + self.bias, ACTIVE, dim=1)[1]
        weights = scores.gather(1, chosen)
        self.count = torch.bincount(chosen.view(-1), minlength=EXPERTS).float()
        total = torch.zeros_like(given)
        for k, expert in enumerate(self.experts):
            token, place = (chosen == k).nonzero(as_tuple=True)
            if len(token):
                total = total.index_add(
                    0, token, expert(given[token]) * weights[token, place, None]
                )
        return total

    def balance(self) -> float:
        """Move the biases; the share of the rank with the most tokens over the mean share."""
        more = STEP_OF_BIAS * torch.sign(self.count.mean() - self.count)
        self.bias += more - more.mean()
        return uneven(self.count)


def uneven(count: Tensor) -> float:
    """The tokens of the fullest of the ranks, each with as many experts, over their mean."""
    of_ranks = count.view(RANKS, -1).sum(1)
    return float(of_ranks.max() / of_ranks.mean())


def _std() -> float:
    """Of the first weights of a matrix, whose inputs are as many more in the original."""
    return 0.02 * _WIDER**0.5


def tokens_of(texts: Sequence[Path]) -> Tensor:
    """Words and signs of texts, by their rank in frequency; rare ones are one."""
    found: list[str] = []
    for text in texts:
        found += re.findall(r"[A-Za-z']+|[^\sA-Za-z]", text.read_text(errors="ignore"))
    common = collections.Counter(found).most_common(WORDS - 1)
    number = {word: k for k, (word, _) in enumerate(common)}
    return torch.tensor([number.get(word, WORDS - 1) for word in found])


def spreads(
    tokens: Tensor, steps: int, warmup: int, seed: int = 0
) -> Iterator[tuple[float, float]]:
    """Of each step: its loss, and the mean of `uneven` over layers."""
    torch.manual_seed(seed)
    words, last, head = (
        nn.Embedding(WORDS, WIDTH),
        nn.RMSNorm(WIDTH),
        nn.Linear(WIDTH, WORDS, bias=False),
    )
    nn.init.trunc_normal_(head.weight, std=WIDTH**-0.5)
    numbers = [round(k * (OF_LAYERS - 1) / (LAYERS - 1)) for k in range(LAYERS)]
    layers = nn.ModuleList(Layer(number) for number in numbers)
    everything = nn.ModuleList((layers, head, last, words))
    matrices = [p for part in (layers, head) for p in part.parameters() if p.dim() > 1]
    others = [p for p in everything.parameters() if not any(p is one for one in matrices)]
    groups = [{"params": matrices, "times": _WIDER}, {"params": others, "times": 1.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, weight_decay=0.1, betas=(0.9, 0.95))
    for step in range(1, steps + 1):
        begins = torch.randint(0, len(tokens) - SEQUENCE - 1, (TOKENS // SEQUENCE,)).tolist()
        batch = torch.stack([tokens[at : at + SEQUENCE + 1] for at in begins])
        hidden = words(batch[:, :-1])
        for layer in layers:
            hidden = layer(hidden)
        loss = F.cross_entropy(head(last(hidden)).view(-1, WORDS), batch[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(everything.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = RATE * group["times"] * min(1.0, step / warmup)
        optimizer.step()
        found = [layer.balance() for layer in layers if layer.gate is not None]
        yield loss.item(), sum(found) / len(found)


def main() -> None:
    """Train, and print a line a step."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("text", type=Path, nargs="+", help="plain text to train on")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=20, help="steps in which the rate rises")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    tokens = tokens_of(given.text)
    for step, (loss, share) in enumerate(spreads(tokens, given.steps, given.warmup, given.seed), 1):
        print(f"step {step}: loss {loss:.2f}, fullest rank {share:.2f}", flush=True)


if __name__ == "__main__":
    main()
