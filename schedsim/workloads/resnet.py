"""ResNets op by op: convolutions, batch norms and ReLUs, counted from the architecture.

The bottleneck networks of He et al. 2016 ("Deep residual learning", table 1) as torchvision builds
them: the stride sits in the 3 x 3 convolution, ReLU runs in place, batch norm keeps its input and
two fp32 statistics per channel, max pooling keeps its input and 8-byte indices. The convolution
algorithm's own workspace is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .config_checks import check_config
from .devices import DTYPE_BYTES
from .ops import ModelRecord, OpRecord, StageRecord

BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Bottleneck blocks per group, by depth."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResNetConfig:
    """A bottleneck ResNet on square images.

    Parameters
    ----------
    depth
        50, 101 or 152.
    batch, image, classes
        Images per batch, edge in pixels, number of outputs.
    dtype
        Number format of activations.
    """

    depth: int
    batch: int = 32
    image: int = 224
    classes: int = 1000
    dtype: str = "fp32"

    def check(self) -> None:
        """Raise `SchedsimError` naming the field and the values that it may have."""
        check_config(self, {"depth": tuple(BLOCKS)}, ("batch", "image", "classes"))


@dataclass
class _ResNetBuilder:
    """Forward and backward ops of one stage, gathered layer by layer."""

    batch: int
    element_bytes: int
    forward: list[OpRecord] = field(default_factory=list)
    backward: list[OpRecord] = field(default_factory=list)
    num_parameters: int = 0

    def size(self, channels: int, edge: int) -> int:
        return self.batch * channels * edge * edge * self.element_bytes

    def conv(
        self,
        name: str,
        source: str,
        shape: tuple[int, int, int, int],
        *,
        stride: int = 1,
        of_image: bool = False,
    ) -> int:
        """Add a convolution (in, out, kernel, input edge), and return the edge of its output."""
        inner, outer, kernel, edge = shape
        made = edge // stride
        flops = 2 * self.batch * made * made * outer * inner * kernel * kernel
        weights = inner * outer * kernel * kernel
        self.num_parameters += weights
        traffic = weights * self.element_bytes
        output = {name: self.size(outer, made)}
        self.forward.append(OpRecord(name, (source,), output, flops, traffic))
        gradient = {f"d.{source}" if source != "in" else f"d.in.{name}": self.size(inner, edge)}
        ways = 2  # one product for the weights' gradient, one for the input's
        if of_image:
            gradient, ways = {}, 1
        reads = (f"d.{name}", source)
        self.backward.insert(0, OpRecord(f"{name}'", reads, gradient, ways * flops, traffic))
        return made

    def norm(self, name: str, source: str, channels: int, edge: int, *, relu: bool) -> None:
        """Batch norm, with ReLU in place where it follows."""
        self.num_parameters += 2 * channels
        size = self.size(channels, edge)
        elements = size // self.element_bytes
        writes = {name: size, f"{name}.stats": 8 * channels}
        stats = (f"{name}.stats",)
        self.forward.append(OpRecord(name, (source,), writes, 10 * elements, 0, stats))
        # ReLU's backward reads its output; without it the output is not needed here.
        reads = (f"d.{name}", source, f"{name}.stats", *((name,) if relu else ()))
        self.backward.insert(0, OpRecord(f"{name}'", reads, {f"d.{source}": size}, 12 * elements))

    def stage(self, name: str) -> StageRecord:
        return StageRecord(name, tuple(self.forward), tuple(self.backward), self.num_parameters)


def resnet_model(config: ResNetConfig) -> ModelRecord:
    """`config` as op records: a stem, a stage per residual block, a head.

    Examples
    --------
    >>> resnet_model(ResNetConfig(depth=50)).num_parameters
    25557032
    """
    config.check()
    element = DTYPE_BYTES[config.dtype]
    stages = [_stem(config)]
    channels, edge = 64, config.image // 4
    for group, count in enumerate(BLOCKS[config.depth]):
        width = 64 * 2**group
        for block in range(count):
            stride = 2 if group and not block else 1
            name = f"layer{group + 1}.{block}"
            stages.append(_bottleneck(config, name, channels, width, edge, stride))
            channels, edge = 4 * width, edge // stride
    stages.append(_head(config, channels, edge))
    pixels = config.batch * 3 * config.image**2 * element
    return ModelRecord(f"resnet-{config.depth}", pixels, tuple(stages), config.dtype)


def _stem(config: ResNetConfig) -> StageRecord:
    builder = _ResNetBuilder(config.batch, DTYPE_BYTES[config.dtype])
    edge = builder.conv("conv1", "in", (3, 64, 7, config.image), stride=2, of_image=True)
    builder.norm("bn1", "conv1", 64, edge, relu=True)
    made = builder.size(64, edge // 2)
    elements = made // builder.element_bytes
    writes = {"out": made, "indices": 8 * elements}
    builder.forward.append(OpRecord("maxpool", ("bn1",), writes, 9 * elements, 0, ("indices",)))
    gradient = {"d.bn1": builder.size(64, edge)}
    reads = ("d.out", "bn1", "indices")
    builder.backward.insert(0, OpRecord("maxpool'", reads, gradient, elements))
    return builder.stage("stem")


def _bottleneck(
    config: ResNetConfig, name: str, channels: int, width: int, edge: int, stride: int
) -> StageRecord:
    builder = _ResNetBuilder(config.batch, DTYPE_BYTES[config.dtype])
    outer = 4 * width
    projected = stride != 1 or channels != outer
    builder.conv("conv1", "in", (channels, width, 1, edge))
    builder.norm("bn1", "conv1", width, edge, relu=True)
    made = builder.conv("conv2", "bn1", (width, width, 3, edge), stride=stride)
    builder.norm("bn2", "conv2", width, made, relu=True)
    builder.conv("conv3", "bn2", (width, outer, 1, made))
    builder.norm("bn3", "conv3", outer, made, relu=False)
    shortcut = "in"
    if projected:
        builder.conv("down", "in", (channels, outer, 1, edge), stride=stride)
        builder.norm("bn_down", "down", outer, made, relu=False)
        shortcut = "bn_down"
    size = builder.size(outer, made)
    elements = size // builder.element_bytes
    builder.forward.append(OpRecord("add_relu", ("bn3", shortcut), {"out": size}, 2 * elements))
    # The branch and the shortcut read the same gradient tensor.
    gradient = OpRecord("add_relu'", ("d.out", "out"), {"d.sum": size}, elements)
    renamed = {"d.bn3": "d.sum", "d.bn_down": "d.sum"}
    backward = [gradient]
    for op in builder.backward:
        reads = tuple(renamed.get(t, t) for t in op.reads)
        backward.append(OpRecord(op.name, reads, op.writes, op.flops, op.parameter_bytes))
    other = "d.in.down" if projected else "d.sum"
    entering = builder.size(channels, edge)
    flops = entering // builder.element_bytes
    backward.append(OpRecord("add'", ("d.in.conv1", other), {"d.in": entering}, flops))
    return StageRecord(name, tuple(builder.forward), tuple(backward), builder.num_parameters)


def _head(config: ResNetConfig, channels: int, edge: int) -> StageRecord:
    element = DTYPE_BYTES[config.dtype]
    pooled, logits = config.batch * channels * element, config.batch * config.classes * element
    entering = pooled * edge * edge
    flops = 2 * config.batch * channels * config.classes
    weights = channels * config.classes * element
    forward = (
        OpRecord("avgpool", ("in",), {"pooled": pooled}, entering // element),
        OpRecord("fc", ("pooled",), {"out": logits}, flops, weights),
    )
    backward = (
        OpRecord("fc'", ("d.out", "pooled"), {"d.pooled": pooled}, 2 * flops, weights),
        OpRecord("avgpool'", ("d.pooled",), {"d.in": entering}, entering // element),
    )
    count = channels * config.classes + config.classes
    return StageRecord("head", forward, backward, count)
