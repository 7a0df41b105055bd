"""Denoisers of diffusion models as op records: DiT, and the U-Net of Stable Diffusion XL.

A DiT is a line of blocks; its conditioning vector travels along with the tokens. The U-Net has skip
connections from its downward to its upward path, so it is one stage of ops: a graph, not a chain.
Attention is fused; convolutions, norms and products keep their inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

from .devices import DTYPE_BYTES
from .ops import ModelRecord, OpRecord, StageRecord
from .stage_tape import StageTape


@dataclass(frozen=True, kw_only=True, slots=True)
class DiTConfig:
    """A diffusion transformer on latents of 4 channels (Peebles & Xie 2023, arXiv 2212.09748).

    Parameters
    ----------
    name
    num_layers, hidden, num_heads
        Table 1 of the paper.
    patch, latent
        Edges of a patch, and of the latent image: 32 for 256 x 256 pixels.
    classes
        Number of labels, without the label for "none".
    batch, dtype
        Images at once; number format of activations.
    """

    name: str
    num_layers: int
    hidden: int
    num_heads: int
    patch: int = 2
    latent: int = 32
    classes: int = 1000
    batch: int = 1
    dtype: str = "bf16"

    @property
    def tokens(self) -> int:
        """Number of tokens of a batch."""
        return self.batch * (self.latent // self.patch) ** 2


@dataclass(frozen=True, kw_only=True, slots=True)
class SDXLConfig:
    """The U-Net of Stable Diffusion XL (Podell et al. 2023, arXiv 2307.01952, table 1).

    Parameters
    ----------
    name
    latent
        Edge of the latent image: 128 for 1024 x 1024 pixels.
    text_tokens
        Number of tokens of the prompt.
    batch, dtype
        Images at once; number format of activations.
    """

    name: str = "sdxl-unet"
    latent: int = 128
    text_tokens: int = 77
    batch: int = 1
    dtype: str = "bf16"


def attend(
    tape: StageTape, prefix: str, reads: tuple[str, str, str], sizes: tuple[int, int, int, int]
) -> str:
    """Fused attention; `sizes`: (sequences, rows of queries, rows of keys, width of all heads)."""
    sequences, rows, keys, width = sizes
    heads = max(1, width // 64)
    made, stats = f"{prefix}c", f"{prefix}lse"
    element = tape.element_bytes
    product = 2 * sequences * rows * keys * width
    record = OpRecord(
        f"{prefix}attention",
        reads,
        {made: sequences * rows * width * element, stats: 4 * sequences * rows * heads},
        2 * product,
        0,
        (stats,),
    )
    tape.op(record, saved=(*reads, made, stats), backward_flops=5 * product)
    return made


# DiT


def dit_model(config: DiTConfig) -> ModelRecord:
    """`config` as op records: an embedding, a stage per block, a head.

    Examples
    --------
    >>> xl2 = DiTConfig(name="dit-xl2", num_layers=28, hidden=1152, num_heads=16)
    >>> dit_model(xl2).num_parameters
    674834720
    """
    block = _dit_block(config)
    stages = [_dit_embedding(config)]
    stages += [
        StageRecord(f"layer{i}", block.forward, block.backward, block.num_parameters)
        for i in range(config.num_layers)
    ]
    stages.append(_dit_head(config))
    pixels = config.batch * 4 * config.latent**2 * DTYPE_BYTES[config.dtype]
    return ModelRecord(config.name, pixels, tuple(stages), config.dtype)


def _dit_sizes(config: DiTConfig) -> tuple[StageTape, int]:
    """(a tape whose input is tokens and the conditioning vector, bytes of the tokens)."""
    element = DTYPE_BYTES[config.dtype]
    tokens = config.tokens * config.hidden * element
    vector = config.batch * config.hidden * element
    return StageTape(element, {"in": tokens + vector}), tokens


def _dit_embedding(config: DiTConfig) -> StageRecord:
    h, element = config.hidden, DTYPE_BYTES[config.dtype]
    pixels = 4 * config.patch**2
    tape = StageTape(element, {"in": config.batch * 4 * config.latent**2 * element})
    tape.constants.add("in")
    tape.product("patches", "in", "x", rows=config.tokens, inner=pixels, outer=h, bias=h)
    frequencies = config.batch * 256 * element
    tape.op(OpRecord("frequencies", (), {"f": frequencies}, config.batch * 256), gradients=())
    tape.constants.add("f")
    tape.product("time1", "f", "t1", rows=config.batch, inner=256, outer=h, bias=h)
    tape.pointwise("time_silu", ("t1",), "t2", config.batch * h * element, saved=("t1",), flops=5)
    tape.product("time2", "t2", "t", rows=config.batch, inner=h, outer=h, bias=h)
    made = (config.tokens + config.batch) * h * element
    # The row of the label's embedding is added to the time's vector; the sum travels beside the
    # tokens.
    labels = (config.classes + 1) * h
    record = OpRecord("condition", ("x", "t"), {"out": made}, made // element)
    tape.op(record, parameters=labels)
    return tape.stage("embedding")


def _modulated(tape: StageTape, config: DiTConfig, given: str, part: str, tokens: int) -> str:
    """A norm without gain, then scale and shift computed from the conditioning vector."""
    elements = config.tokens * config.hidden
    tape.op(OpRecord(f"{part}norm", (given,), {f"{part}n": tokens}, 8 * elements), saved=(given,))
    made = f"{part}s"
    tape.pointwise(
        f"{part}scale", (f"{part}n", "mod"), made, tokens, saved=(f"{part}n", "mod"), flops=2
    )
    return made


def _dit_block(config: DiTConfig) -> StageRecord:
    tape, tokens = _dit_sizes(config)
    h, rows, element = config.hidden, config.tokens, tape.element_bytes
    tape.pointwise("silu", ("in",), "v", config.batch * h * element, saved=("in",), flops=5)
    tape.product("modulation", "v", "mod", rows=config.batch, inner=h, outer=6 * h, bias=6 * h)
    scaled = _modulated(tape, config, "in", "attention.", tokens)
    qkv = OpRecord(
        "attention.qkv",
        (scaled,),
        dict.fromkeys(("q", "k", "v3"), tokens),
        6 * rows * h * h,
        (3 * h * h + 3 * h) * element,
    )
    tape.op(qkv, saved=(scaled,), backward_flops=2 * qkv.flops, parameters=3 * h * h + 3 * h)
    edge = (config.latent // config.patch) ** 2
    mixed = attend(tape, "attention.", ("q", "k", "v3"), (config.batch, edge, edge, h))
    tape.product("attention.proj", mixed, "o", rows=rows, inner=h, outer=h, bias=h)
    tape.pointwise("attention.gate", ("o", "mod"), "og", tokens, saved=("o", "mod"), flops=1)
    # The output is the sum with the conditioning vector beside it.
    size = tape.sizes["in"]
    tape.op(OpRecord("attention.residual", ("in", "og"), {"mid": size}, size // element))
    scaled = _modulated(tape, config, "mid", "mlp.", tokens)
    tape.product("mlp.up", scaled, "u", rows=rows, inner=h, outer=4 * h, bias=4 * h)
    tape.pointwise("mlp.gelu", ("u",), "m", 4 * tokens, saved=("u",), flops=10)
    tape.product("mlp.down", "m", "d", rows=rows, inner=4 * h, outer=h, bias=h)
    tape.pointwise("mlp.gate", ("d", "mod"), "dg", tokens, saved=("d", "mod"), flops=1)
    tape.op(OpRecord("mlp.residual", ("mid", "dg"), {"out": size}, size // element))
    return tape.stage("layer")


def _dit_head(config: DiTConfig) -> StageRecord:
    tape, tokens = _dit_sizes(config)
    h, element = config.hidden, tape.element_bytes
    tape.pointwise("silu", ("in",), "v", config.batch * h * element, saved=("in",), flops=5)
    tape.product("modulation", "v", "mod", rows=config.batch, inner=h, outer=2 * h, bias=2 * h)
    scaled = _modulated(tape, config, "in", "", tokens)
    outer = config.patch**2 * 8  # noise and its variance, 4 channels each
    tape.product("pixels", scaled, "out", rows=config.tokens, inner=h, outer=outer, bias=outer)
    return tape.stage("head")


# The U-Net of Stable Diffusion XL

_CHANNELS = (320, 640, 1280)
_TRANSFORMERS = (0, 2, 10)  # number of transformer blocks at each resolution
_TEXT = 2048
_TIME = 1280


class _UNetWriter:
    """Writes the U-Net to one tape."""

    def __init__(self, config: SDXLConfig) -> None:
        self.config = config
        element = DTYPE_BYTES[config.dtype]
        self.element = element
        pixels = config.batch * 4 * config.latent**2 * element
        self.tape = StageTape(element, {"in": pixels})
        self.count = 0

    def size(self, channels: int, edge: int) -> int:
        return self.config.batch * channels * edge * edge * self.element

    def conv(
        self, name: str, given: str, shape: tuple[int, int, int, int], *, stride: int = 1
    ) -> str:
        """A convolution (in, out, kernel, edge of its input) with bias."""
        inner, outer, kernel, edge = shape
        made = edge // stride
        weights = inner * outer * kernel * kernel + outer
        flops = 2 * self.config.batch * made * made * outer * inner * kernel * kernel
        writes = {name: self.size(outer, made)}
        record = OpRecord(name, (given,), writes, flops, weights * self.element)
        self.tape.op(record, saved=(given,), backward_flops=2 * flops, parameters=weights)
        return name

    def norm_silu(self, name: str, given: str, channels: int) -> str:
        """A group norm and SiLU, each keeping its input."""
        tape = self.tape
        tape.norm(f"{name}.norm", given, f"{name}.n", parameters=2 * channels)
        size = tape.sizes[given]
        return tape.pointwise(
            f"{name}.silu", (f"{name}.n",), f"{name}.a", size, saved=(f"{name}.n",), flops=5
        )

    def resnet(self, name: str, given: str, inner: int, outer: int, edge: int) -> str:
        tape = self.tape
        first = self.norm_silu(f"{name}.1", given, inner)
        made = self.conv(f"{name}.conv1", first, (inner, outer, 3, edge))
        vector = f"{name}.time"
        tape.product(
            vector, "time", vector, rows=self.config.batch, inner=_TIME, outer=outer, bias=outer
        )
        size = self.size(outer, edge)
        timed = tape.pointwise(f"{name}.shift", (made, vector), f"{name}.t", size)
        second = self.norm_silu(f"{name}.2", timed, outer)
        made = self.conv(f"{name}.conv2", second, (outer, outer, 3, edge))
        if inner != outer:
            given = self.conv(f"{name}.shortcut", given, (inner, outer, 1, edge))
        return tape.add(f"{name}.sum", given, made, f"{name}.out")

    def transformer(self, name: str, given: str, width: int, edge: int, blocks: int) -> str:
        tape, rows = self.tape, self.config.batch * edge * edge
        normed = tape.norm(f"{name}.norm", given, f"{name}.n", parameters=2 * width)
        at = tape.product(
            f"{name}.in", normed, f"{name}.x", rows=rows, inner=width, outer=width, bias=width
        )
        for i in range(blocks):
            at = self.block(f"{name}.{i}", at, width, edge)
        at = tape.product(
            f"{name}.proj", at, f"{name}.y", rows=rows, inner=width, outer=width, bias=width
        )
        return tape.add(f"{name}.sum", given, at, f"{name}.out")

    def block(self, name: str, given: str, width: int, edge: int) -> str:
        """Attention, attention to the text, a gated MLP."""
        tape, batch, rows = self.tape, self.config.batch, self.config.batch * edge * edge
        for k, (source, inner, length) in enumerate(
            (("", width, edge * edge), ("text", _TEXT, self.config.text_tokens))
        ):
            part = f"{name}.{'cross' if source else 'self'}_"
            normed = tape.norm(f"{part}norm", given, f"{part}n", parameters=2 * width)
            key_source = source or normed
            query = tape.product(
                f"{part}q", normed, f"{part}q", rows=rows, inner=width, outer=width
            )
            key, value = (
                tape.product(
                    f"{part}{one}",
                    key_source,
                    f"{part}{one}",
                    rows=batch * length,
                    inner=inner,
                    outer=width,
                )
                for one in "kv"
            )
            mixed = attend(tape, part, (query, key, value), (batch, edge * edge, length, width))
            out = tape.product(
                f"{part}proj", mixed, f"{part}o", rows=rows, inner=width, outer=width, bias=width
            )
            given = tape.add(f"{part}sum", given, out, f"{name}.{k}")
        normed = tape.norm(f"{name}.mlp_norm", given, f"{name}.mn", parameters=2 * width)
        up = tape.product(
            f"{name}.up", normed, f"{name}.u", rows=rows, inner=width, outer=8 * width,
            bias=8 * width,
        )  # fmt: skip
        gated = tape.pointwise(
            f"{name}.geglu", (up,), f"{name}.m", tape.sizes[up] // 2, saved=(up,), flops=11
        )
        down = tape.product(
            f"{name}.down", gated, f"{name}.d", rows=rows, inner=4 * width, outer=width, bias=width
        )
        return tape.add(f"{name}.sum", given, down, f"{name}.out")

    def conditions(self) -> None:
        """The conditioning vector of time, size and prompt, which every residual block reads."""
        tape, batch = self.tape, self.config.batch
        text = batch * self.config.text_tokens * _TEXT * self.element
        given = {"text": text, "f": batch * 320 * self.element, "a": batch * 2816 * self.element}
        tape.op(OpRecord("given", (), given), gradients=())
        tape.constants |= set(given)
        for name, source, inner in (("t", "f", 320), ("added", "a", 2816)):
            tape.product(
                f"{name}1", source, f"{name}1", rows=batch, inner=inner, outer=_TIME, bias=_TIME
            )
            size = batch * _TIME * self.element
            tape.pointwise(f"{name}.silu", (f"{name}1",), f"{name}2", size, saved=(f"{name}1",))
            tape.product(
                f"{name}3", f"{name}2", f"{name}3", rows=batch, inner=_TIME, outer=_TIME, bias=_TIME
            )
        tape.add("time_sum", "t3", "added3", "time0")
        size = batch * _TIME * self.element
        tape.pointwise("time_silu", ("time0",), "time", size, saved=("time0",), flops=5)

    def write(self) -> StageRecord:
        edge, tape = self.config.latent, self.tape
        self.conditions()
        at = self.conv("conv_in", "in", (4, _CHANNELS[0], 3, edge))
        skips = [(at, _CHANNELS[0])]
        inner = _CHANNELS[0]
        for level, outer in enumerate(_CHANNELS):
            for k in range(2):
                at = self.resnet(f"down{level}.{k}", at, inner, outer, edge)
                inner = outer
                if _TRANSFORMERS[level]:
                    name = f"down{level}.{k}.attention"
                    at = self.transformer(name, at, outer, edge, _TRANSFORMERS[level])
                skips.append((at, outer))
            if level < 2:
                shape = (outer, outer, 3, edge)
                at = self.conv(f"down{level}.stride", at, shape, stride=2)
                edge //= 2
                skips.append((at, outer))
        at = self.resnet("middle.0", at, inner, inner, edge)
        at = self.transformer("middle.attention", at, inner, edge, _TRANSFORMERS[-1])
        at = self.resnet("middle.1", at, inner, inner, edge)
        for level in (2, 1, 0):
            outer = _CHANNELS[level]
            for k in range(3):
                skip, more = skips.pop()
                both = f"up{level}.{k}.both"
                size = tape.sizes[at] + tape.sizes[skip]
                tape.op(OpRecord(both, (at, skip), {both: size}))
                at = self.resnet(f"up{level}.{k}", both, inner + more, outer, edge)
                inner = outer
                if _TRANSFORMERS[level]:
                    name = f"up{level}.{k}.attention"
                    at = self.transformer(name, at, outer, edge, _TRANSFORMERS[level])
            if level:
                edge *= 2
                wide = f"up{level}.wide"
                size = 4 * tape.sizes[at]
                tape.op(OpRecord(wide, (at,), {wide: size}))
                at = self.conv(f"up{level}.conv", wide, (outer, outer, 3, edge))
        last = self.norm_silu("out", at, _CHANNELS[0])
        weights = _CHANNELS[0] * 4 * 9 + 4
        flops = 2 * self.config.batch * edge * edge * 4 * _CHANNELS[0] * 9
        record = OpRecord(
            "conv_out", (last,), {"out": self.size(4, edge)}, flops, weights * self.element
        )
        tape.op(record, saved=(last,), backward_flops=2 * flops, parameters=weights)
        return tape.stage("unet")


def sdxl_model(config: SDXLConfig) -> ModelRecord:
    """`config` as op records, all in one stage: to be planned as a graph.

    Examples
    --------
    >>> sdxl_model(SDXLConfig()).num_parameters
    2567463684
    """
    stage = _UNetWriter(config).write()
    pixels = config.batch * 4 * config.latent**2 * DTYPE_BYTES[config.dtype]
    return ModelRecord(config.name, pixels, (stage,), config.dtype)
