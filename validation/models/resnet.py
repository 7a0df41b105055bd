"""Residual networks with bottlenecks (He et al. 2016), strides in the 3 x 3 convolutions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from schedsim.errors import SchedsimError

from .losses import CrossEntropy, class_targets
from .workload import Workload, builder

EXPANSION = 4
DEPTHS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Bottlenecks per stage (He et al. 2016, table 1)."""


class Stem(nn.Sequential):
    """The 7 x 7 convolution, its norm, ReLU in place and the pooling."""

    def __init__(self, width: int) -> None:
        super().__init__(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions with norms, added to the input, ReLU in place."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = EXPANSION * width
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut: nn.Module | None = None
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out)
            )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, channels, height, width)`` to four times the inner width."""
        out: Tensor = self.body(x)
        out += x if self.shortcut is None else self.shortcut(x)
        active: Tensor = self.relu(out)
        return active


class ResNetHead(nn.Module):
    """Mean over the image and the classes."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.logits = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, channels, height, width)`` to ``(batch, classes)``."""
        scores: Tensor = self.logits(x.mean(dim=(2, 3)))
        return scores


@builder
def build_resnet(
    *,
    depth: int = 50,
    depths: tuple[int, ...] | None = None,
    width: int = 64,
    image: int = 224,
    classes: int = 1000,
    batch: int = 1,
) -> Workload:
    """ResNet-50, -101 or -152 (25,557,032, 44,549,160 and 60,192,808 parameters), or any other.

    Parameters
    ----------
    depths
        Bottlenecks in each stage, instead of those of `depth`.
    width
        Channels of the stem; each stage doubles them.
    """
    stages: list[nn.Module] = [Stem(width)]
    channels = width
    if depths is None and depth not in DEPTHS:
        raise SchedsimError(
            f"depth {depth} is of no bottleneck ResNet",
            hint=f"one of {', '.join(map(str, DEPTHS))}; or depths=, bottlenecks of each stage",
        )
    for number, count in enumerate(depths or DEPTHS[depth]):
        inner = width * 2**number
        for k in range(count):
            stages.append(Bottleneck(channels, inner, 2 if number and not k else 1))
            channels = EXPANSION * inner
    model = nn.Sequential(*stages, ResNetHead(channels, classes))
    images = torch.randn(batch, 3, image, image)
    return Workload(model, (images,), CrossEntropy(class_targets(classes, batch)))
