"""U-Net (Ronneberger et al. 2015), padded and with BatchNorm, as it is used today."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .losses import PixelCrossEntropy, class_targets
from .workload import Workload, builder, check_multiple


class DoubleConv(nn.Sequential):
    """Twice: 3 x 3 convolution, norm, ReLU in place; dropout after, where asked."""

    def __init__(self, channels: int, out: int, dropout: float = 0.0) -> None:
        parts: list[nn.Module] = []
        for source in (channels, out):
            parts += [
                nn.Conv2d(source, out, 3, padding=1, bias=False),
                nn.BatchNorm2d(out),
                nn.ReLU(inplace=True),
            ]
        if dropout:
            parts.append(nn.Dropout2d(dropout))
        super().__init__(*parts)


class Up(nn.Module):
    """Doubles the image, joins the skip of that size, and convolves."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.grow = nn.ConvTranspose2d(channels, out, 2, stride=2)
        self.convolve = DoubleConv(2 * out, out)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """``(batch, channels, h, w)`` and a skip of ``2h x 2w`` to ``(batch, out, 2h, 2w)``."""
        joined: Tensor = self.convolve(torch.cat((skip, self.grow(x)), dim=1))
        return joined


class UNet(nn.Module):
    """Down, up, and skips between the two; `blocks` names its parts and what each reads."""

    def __init__(self, levels: int, width: int, channels: int, classes: int, dropout: float):
        super().__init__()
        widths = [width * 2**k for k in range(levels + 1)]
        self.enter = DoubleConv(channels, width)
        self.down = nn.ModuleList(
            nn.Sequential(
                nn.MaxPool2d(2),
                DoubleConv(widths[k], widths[k + 1], dropout if k + 1 == levels else 0.0),
            )
            for k in range(levels)
        )
        self.up = nn.ModuleList(Up(widths[k + 1], widths[k]) for k in reversed(range(levels)))
        self.leave = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, channels, h, w)`` to ``(batch, classes, h, w)``."""
        skips = [self.enter(x)]
        for down in self.down:
            skips.append(down(skips[-1]))
        x = skips.pop()
        for up in self.up:
            x = up(x, skips.pop())
        logits: Tensor = self.leave(x)
        return logits

    def blocks(self) -> list[tuple[str, nn.Module, tuple[str, ...]]]:
        """Name, module and the names of what it reads, of each part in order."""
        parts: list[tuple[str, nn.Module, tuple[str, ...]]] = [("enter", self.enter, ("input",))]
        for k, down in enumerate(self.down):
            parts.append((f"down{k}", down, (parts[-1][0],)))
        levels = len(self.down)
        for k, up in enumerate(self.up):
            skip = f"down{levels - 2 - k}" if k < levels - 1 else "enter"
            parts.append((f"up{k}", up, (parts[-1][0], skip)))
        return [*parts, ("leave", self.leave, (parts[-1][0],))]


@builder
def build_unet(
    *,
    levels: int = 4,
    width: int = 64,
    channels: int = 3,
    classes: int = 2,
    image: int = 256,
    batch: int = 1,
    dropout: float = 0.0,
) -> Workload:
    """A U-Net of any size; the defaults have 31,037,698 parameters."""
    check_multiple("image", image, "2**levels", 2**levels)
    model = UNet(levels, width, channels, classes, dropout)
    images = torch.randn(batch, channels, image, image)
    target = class_targets(classes, batch, image, image)
    return Workload(model, (images,), PixelCrossEntropy(target))
