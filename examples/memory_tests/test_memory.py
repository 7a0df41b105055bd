"""Memory tests of a model: the peak of a training step at its real size, on any machine.

    pytest examples/memory_tests                     # in seconds, without a GPU
    pytest examples/memory_tests --schedsim-update   # accept the peaks of today

Nothing is allocated: `build` runs on the meta device, where tensors have sizes and no memory.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, LAYERS, WORDS, BATCH, LENGTH = 2048, 16, 16, 50_000, 8, 2048


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        y = self.norm1(x)
        # With need_weights=True the fused kernel is lost: try it, and read what the test says.
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.logits = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.logits(x)


def loss(logits, target):
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def build():
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    return Model().to(torch.bfloat16), (ids, ids), loss


def test_a_step_fits_the_card(schedsim_peak):
    assert schedsim_peak(build, optimizer="adamw") <= "27GiB"


def test_nothing_new_is_kept(schedsim_peak):
    schedsim_peak.check(build, optimizer="adamw", allowed="1%")
