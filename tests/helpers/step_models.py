"""Small models with everything that makes a training step hard to replay."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class DropoutMLP(nn.Module):
    """Linear, GELU and dropout, in a line."""

    def __init__(self, num_layers=4, width=32):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(num_layers))
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        for layer in self.layers:
            x = self.drop(F.gelu(layer(x)))
        return x


class Block(nn.Module):
    """A transformer block with dropout inside and after attention."""

    def __init__(self, width, num_heads, dropout):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )
        self.num_heads, self.dropout = num_heads, dropout

    def forward(self, x):
        batch, length, width = x.shape
        shape = batch, length, 3, self.num_heads, width // self.num_heads
        q, k, v = self.qkv(self.norm1(x)).view(shape).permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.dropout if self.training else 0.0
        a = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class TinyGPT(nn.Module):
    """Embeddings tied to the head, and blocks."""

    def __init__(self, num_blocks=2, width=32, num_heads=4, vocabulary=61, length=16, dropout=0.1):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, num_heads, dropout) for _ in range(num_blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens):
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Residual(nn.Module):
    """Convolutions with BatchNorm, ReLU and the addition both in place."""

    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        y += x
        return self.relu(y)


class TinyResNet(nn.Module):
    """Residual blocks; the last one is used twice, its statistics with it."""

    def __init__(self, width=8, num_blocks=2):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(*(Residual(width) for _ in range(num_blocks)))
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.blocks(self.stem(x))
        x = self.blocks[-1](F.max_pool2d(x, 2))
        return self.head(x.mean((2, 3)))


class TinyUNet(nn.Module):
    """Two levels down and up, joined by concatenation."""

    def __init__(self, width=4):
        super().__init__()

        def double(inside, outside):
            return nn.Sequential(
                nn.Conv2d(inside, outside, 3, padding=1),
                nn.BatchNorm2d(outside),
                nn.ReLU(inplace=True),
                nn.Conv2d(outside, outside, 3, padding=1),
            )

        self.down1, self.down2 = double(3, width), double(width, 2 * width)
        self.up, self.join = nn.ConvTranspose2d(2 * width, width, 2, 2), double(2 * width, width)
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x):
        wide = self.down1(x)
        deep = self.down2(F.max_pool2d(wide, 2))
        return self.out(self.join(torch.cat([self.up(deep), wide], 1)))


class UnrolledLSTM(nn.Module):
    """A cell over time steps, one set of weights for all."""

    def __init__(self, num_steps=5, width=8):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(width, width), nn.Linear(width, 3)
        self.num_steps = num_steps

    def forward(self, x):
        hidden = cell = x.new_zeros(x.shape[1], x.shape[2])
        for step in range(self.num_steps):
            hidden, cell = self.cell(x[step], (hidden, cell))
        return self.head(hidden)


def token_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _pixels(classes, *shape):
    return torch.randn(2, 3, 12, 12), torch.randint(0, classes, (2, *shape))


def _images(classes):
    return torch.randn(4, 3, 8, 8), torch.randint(0, classes, (4,))


STEPS = {
    "mlp": lambda: (DropoutMLP(), (torch.randn(16, 32), torch.randn(16, 32)), F.mse_loss),
    "gpt": lambda: (
        TinyGPT(),
        (torch.randint(0, 61, (2, 16)), torch.randint(0, 61, (2, 16))),
        token_loss,
    ),
    "resnet": lambda: (TinyResNet(), _images(5), F.cross_entropy),
    "unet": lambda: (TinyUNet(), _pixels(2, 12, 12), F.cross_entropy),
    "lstm": lambda: (
        UnrolledLSTM(),
        (torch.randn(5, 6, 8), torch.randint(0, 3, (6,))),
        F.cross_entropy,
    ),
}
"""Name -> function that makes (model, inputs, loss)."""


def make_step(name):
    """Model, inputs and loss called `name`, the same ones each time."""
    torch.manual_seed(1)
    return STEPS[name]()
