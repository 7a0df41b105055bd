"""The vision transformer (Dosovitskiy et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .losses import CrossEntropy, class_targets
from .workload import Workload, builder, check_multiple


class Patches(nn.Module):
    """Patches projected by a convolution, a class token before them, positions added."""

    def __init__(self, image: int, patch: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.projection = nn.Conv2d(3, hidden, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, hidden))
        self.positions = nn.Parameter(torch.zeros(1, (image // patch) ** 2 + 1, hidden))
        nn.init.normal_(self.positions, std=0.02)
        self.dropout = nn.Dropout(dropout)

    def forward(self, images: Tensor) -> Tensor:
        """``(batch, 3, image, image)`` to ``(batch, patches + 1, hidden)``."""
        patches = self.projection(images).flatten(2).transpose(1, 2)
        token = self.token.expand(images.shape[0], -1, -1)
        summed: Tensor = self.dropout(torch.cat((token, patches), dim=1) + self.positions)
        return summed


class ViTBlock(nn.Module):
    """Self-attention and an exact GELU feed-forward, each after its norm."""

    def __init__(self, hidden: int, heads: int, ffn: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = (nn.LayerNorm(hidden, eps=1e-6) for _ in range(2))
        self.qkv, self.projection = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.wide, self.narrow = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, patches + 1, hidden)`` to the same."""
        batch, num, hidden = x.shape
        split = self.qkv(self.norm1(x)).view(batch, num, 3, self.heads, hidden // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        mixed = mixed.transpose(1, 2).reshape(batch, num, hidden)
        x = x + functional.dropout(self.projection(mixed), self.dropout, self.training)
        inner = functional.gelu(self.wide(self.norm2(x)))
        inner = functional.dropout(inner, self.dropout, self.training)
        return x + functional.dropout(self.narrow(inner), self.dropout, self.training)


class ViTHead(nn.Module):
    """Last norm and the classes of the first token."""

    def __init__(self, hidden: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden, eps=1e-6)
        self.logits = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, patches + 1, hidden)`` to ``(batch, classes)``."""
        scores: Tensor = self.logits(self.norm(x)[:, 0])
        return scores


@builder
def build_vit(
    *,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    ffn: int | None = None,
    patch: int = 16,
    image: int = 224,
    classes: int = 1000,
    batch: int = 1,
    dropout: float = 0.0,
) -> Workload:
    """A ViT of any size; the defaults are ViT-B/16, 86,567,656 parameters."""
    check_multiple("hidden", hidden, "heads", heads)
    check_multiple("image", image, "patch", patch)
    blocks = [ViTBlock(hidden, heads, ffn or 4 * hidden, dropout) for _ in range(layers)]
    model = nn.Sequential(Patches(image, patch, hidden, dropout), *blocks, ViTHead(hidden, classes))
    images = torch.randn(batch, 3, image, image)
    return Workload(model, (images,), CrossEntropy(class_targets(classes, batch)))
