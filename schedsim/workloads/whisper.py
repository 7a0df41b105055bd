"""Whisper as op records (Radford et al. 2022, arXiv 2212.04356): an encoder that each layer reads.

All ops are one stage, a graph and no chain, as the encoder's output is read from the first decoder
layer to the last. Attention is fused; its keys have no bias.
"""

from __future__ import annotations

from dataclasses import dataclass

from .devices import DTYPE_BYTES
from .diffusion import attend
from .ops import ModelRecord, OpRecord
from .stage_tape import StageTape


@dataclass(frozen=True, kw_only=True, slots=True)
class WhisperConfig:
    """A Whisper model.

    Parameters
    ----------
    name
    num_layers, hidden
        Of the encoder, and as many of the decoder; table 1 of the paper.
    mels
        Bands of the spectrogram.
    vocab
        Of the text.
    frames, text
        Positions of the encoder, half of the spectrogram's; of the text.
    batch, dtype
        Sequences at once; number format of activations.
    """

    name: str
    num_layers: int
    hidden: int
    mels: int = 80
    vocab: int = 51865
    frames: int = 1500
    text: int = 448
    batch: int = 1
    dtype: str = "bf16"


class _Whisper:
    """Writes the model to one tape."""

    def __init__(self, config: WhisperConfig) -> None:
        self.config = config
        self.element = DTYPE_BYTES[config.dtype]
        sound = config.batch * config.mels * 2 * config.frames * self.element
        self.tape = StageTape(self.element, {"in": sound})

    def attention(
        self, part: str, given: str, rows: int, *, source: str = "", keys: int = 0
    ) -> str:
        tape, h, batch = self.tape, self.config.hidden, self.config.batch
        normed = tape.norm(f"{part}norm", given, f"{part}n", parameters=2 * h)
        read, length = source or normed, keys or rows
        query = tape.product(
            f"{part}q", normed, f"{part}q", rows=batch * rows, inner=h, outer=h, bias=h
        )
        key, value = (
            tape.product(
                f"{part}{one}",
                read,
                f"{part}{one}",
                rows=batch * length,
                inner=h,
                outer=h,
                bias=bias,
            )
            for one, bias in (("k", 0), ("v", h))
        )
        mixed = attend(tape, part, (query, key, value), (batch, rows, length, h))
        out = tape.product(
            f"{part}proj", mixed, f"{part}o", rows=batch * rows, inner=h, outer=h, bias=h
        )
        return tape.add(f"{part}residual", given, out, f"{part}out")

    def perceptron(self, part: str, given: str, rows: int) -> str:
        tape, h = self.tape, self.config.hidden
        rows *= self.config.batch
        normed = tape.norm(f"{part}norm", given, f"{part}n", parameters=2 * h)
        up = tape.product(
            f"{part}up", normed, f"{part}u", rows=rows, inner=h, outer=4 * h, bias=4 * h
        )
        act = tape.pointwise(
            f"{part}gelu", (up,), f"{part}m", tape.sizes[up], saved=(up,), flops=10
        )
        down = tape.product(f"{part}down", act, f"{part}d", rows=rows, inner=4 * h, outer=h, bias=h)
        return tape.add(f"{part}residual", given, down, f"{part}out")

    def encoder(self) -> str:
        config, tape = self.config, self.tape
        h, frames, e = config.hidden, config.frames, self.element
        at, inner = "in", config.mels
        for k, length in ((1, 2 * frames), (2, frames)):
            weights = 3 * inner * h + h
            made = f"conv{k}"
            size = config.batch * length * h * e
            flops = 2 * config.batch * length * 3 * inner * h
            tape.op(
                OpRecord(made, (at,), {made: size}, flops, weights * e),
                saved=(at,),
                backward_flops=2 * flops,
                parameters=weights,
            )
            at = tape.pointwise(f"gelu{k}", (made,), f"a{k}", size, saved=(made,), flops=10)
            inner = h
        # Positions are added: sinusoids that are kept as parameters, and not trained.
        size = tape.sizes[at]
        tape.op(OpRecord("positions", (at,), {"x": size}, size // e), parameters=frames * h)
        at = "x"
        for i in range(config.num_layers):
            at = self.attention(f"encoder{i}.attention.", at, frames)
            at = self.perceptron(f"encoder{i}.mlp.", at, frames)
        return tape.norm("encoder_norm", at, "heard", parameters=2 * h)

    def decoder(self, heard: str) -> None:
        config, tape, e = self.config, self.tape, self.element
        h, rows = config.hidden, config.batch * config.text
        embed = OpRecord("embed", (), {"t": rows * h * e}, rows * h)
        tape.op(embed, gradients=(), parameters=(config.vocab + config.text) * h)
        at = "t"
        for i in range(config.num_layers):
            at = self.attention(f"decoder{i}.attention.", at, config.text)
            at = self.attention(
                f"decoder{i}.cross.", at, config.text, source=heard, keys=config.frames
            )
            at = self.perceptron(f"decoder{i}.mlp.", at, config.text)
        normed = tape.norm("decoder_norm", at, "last", parameters=2 * h)
        weights = config.vocab * h  # those of the embedding
        logits = OpRecord(
            "logits", (normed,), {"out": rows * config.vocab * 4}, 2 * rows * weights, weights * e
        )
        tape.op(logits, saved=(normed,), backward_flops=2 * logits.flops)


def whisper_model(config: WhisperConfig) -> ModelRecord:
    """`config` as op records, all in one stage: to be planned as a graph.

    Examples
    --------
    >>> tiny = WhisperConfig(name="whisper-tiny", num_layers=4, hidden=384)
    >>> whisper_model(tiny).num_parameters
    37760640
    """
    writer = _Whisper(config)
    writer.decoder(writer.encoder())
    sound = writer.tape.sizes["in"]
    return ModelRecord(config.name, sound, (writer.tape.stage("whisper"),), config.dtype)
