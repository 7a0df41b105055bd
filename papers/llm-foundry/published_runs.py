"""llm-foundry's published training benchmarks of MPT models: settings and throughput.

Of ``scripts/train/benchmarking/README.md``: all rows of 1B and more in bf16 on A100 and H100 with
80 GB. `RUNS` are those of 7B and more whose sequences have 2,048 tokens, and the row with the
longest sequence of each of these models; `OTHERS` are the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schedsim.clusters import Architecture, AttentionSizes

_SIZES = {
    "1b": (24, 2048, 16),
    "3b": (32, 2560, 20),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}
"""Layers, width, heads: ``scripts/train/yamls/pretrain/mpt-*.yaml``."""


@dataclass(frozen=True)
class Run:
    """A row: model, tokens of a sequence, GPUs, sequences of a micro-batch, micro-batches.

    `tokens` are those per second and GPU; `full`: each block is checkpointed; `pure`: gradients are
    reduced in 16 bits ("MP Mode"); `zero`: 2 where parameters are gathered once ("SHARD_GRAD_OP").
    """

    model: str
    seq: int
    gpus: int
    micro: int
    num_micro: int
    tokens: float
    full: bool = True
    pure: bool = False
    zero: int = 3

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.model}, {self.seq:,} tokens, {self.gpus} GPUs"

    def architecture(self) -> Architecture:
        """GPT with learned positions, biases, and a tied head; the table prints its parameters."""
        layers, hidden, heads = _SIZES[self.model]
        return Architecture(
            f"mpt-{self.model}",
            layers,
            hidden,
            50368,
            4 * hidden,
            AttentionSizes(heads, heads, hidden // heads, bias=True, output_bias=True),
            gated=False,
            tied=True,
            positions=self.seq,
            plain_norm=True,
        )

    def options(self) -> dict[str, Any]:
        """Arguments of `schedsim.cluster`."""
        return {
            "fsdp": self.gpus,
            "seq": self.seq,
            "batch": self.micro * self.num_micro,
            "num_micro_batches": self.num_micro,
            "recompute": "full" if self.full else "none",
            "compiled_loss": True,
            "fused_optimizer": True,
            "reduce_bf16": self.pure,
            "zero_stage": self.zero,
        }


RUNS: dict[str, list[Run]] = {
    "h100-80gb": [
        Run("70b", 2048, 512, 8, 1, 1007),
        Run("70b", 2048, 256, 8, 1, 1035),
        Run("70b", 2048, 128, 8, 1, 1058),
        Run("70b", 2048, 64, 8, 4, 1039),
        Run("70b", 2048, 32, 2, 16, 882),
        Run("30b", 8192, 8, 1, 21, 1384),
        Run("30b", 2048, 512, 8, 1, 2115),
        Run("30b", 2048, 256, 8, 1, 2148),
        Run("30b", 2048, 128, 8, 1, 2199),
        Run("30b", 2048, 32, 14, 3, 2308),
        Run("30b", 2048, 16, 10, 3, 2263),
        Run("30b", 2048, 8, 3, 21, 2002),
        Run("13b", 32768, 8, 1, 3, 1976),
        Run("13b", 2048, 512, 16, 1, 4952),
        Run("13b", 2048, 256, 16, 1, 4989),
        Run("13b", 2048, 128, 16, 1, 5080),
        Run("13b", 2048, 64, 2, 1, 4800, full=False),
        Run("13b", 2048, 32, 2, 1, 4811, full=False),
        Run("13b", 2048, 16, 2, 1, 4767, full=False),
        Run("13b", 2048, 8, 2, 1, 4792, full=False),
        Run("7b", 65536, 8, 1, 2, 1956),
        Run("7b", 2048, 512, 6, 1, 9670, full=False),
        Run("7b", 2048, 256, 6, 1, 10119, full=False),
        Run("7b", 2048, 128, 6, 1, 10475, full=False),
        Run("7b", 2048, 8, 6, 1, 10643, full=False),
    ],
    "a100-80gb": [
        Run("70b", 2048, 64, 8, 4, 410, pure=True),
        Run("70b", 2048, 32, 2, 16, 373, pure=True),
        Run("30b", 8192, 8, 1, 21, 574),
        Run("30b", 2048, 8, 3, 21, 916),
        Run("13b", 32768, 8, 1, 3, 1016),
        Run("13b", 2048, 8, 2, 3, 2262, full=False),
        Run("7b", 65536, 8, 1, 2, 1013),
        Run("7b", 2048, 8, 6, 2, 4641, full=False),
    ],
}
"""Rows by device."""

# All other rows of 1B and more in bf16 on these devices. They were written down before any of them
# was predicted, once computation beside messages had been modelled.
OTHERS: dict[str, list[Run]] = {
    "h100-80gb": [
        Run("3b", 2048, 512, 8, 1, 21664, full=False, zero=2),
        Run("3b", 2048, 256, 8, 1, 22772, full=False, zero=2),
        Run("3b", 2048, 128, 8, 1, 23422, full=False, zero=2),
        Run("1b", 2048, 512, 12, 1, 39837, full=False, zero=2),
        Run("1b", 2048, 256, 12, 1, 42555, full=False, zero=2),
        Run("1b", 2048, 128, 12, 1, 44123, full=False, zero=2),
        Run("30b", 4096, 8, 1, 21, 1802),
        Run("30b", 1024, 8, 6, 21, 2084),
        Run("13b", 16384, 8, 3, 3, 2985),
        Run("13b", 4096, 8, 10, 3, 4717),
        Run("13b", 1024, 8, 40, 3, 5502),
        Run("7b", 32768, 8, 2, 2, 3318),
        Run("7b", 8192, 8, 8, 2, 6935),
        Run("7b", 4096, 8, 16, 2, 8611),
        Run("7b", 1024, 8, 64, 2, 10203),
        Run("3b", 65536, 8, 1, 2, 3262),
        Run("3b", 32768, 8, 3, 6, 5873),
        Run("3b", 16384, 8, 1, 6, 11152, full=False),
        Run("3b", 8192, 8, 3, 6, 16578, full=False),
        Run("3b", 4096, 8, 5, 6, 20964, full=False),
        Run("3b", 2048, 64, 6, 3, 22525, full=False),
        Run("3b", 2048, 32, 6, 3, 23021, full=False),
        Run("3b", 2048, 16, 10, 3, 24142, full=False),
        Run("3b", 1024, 8, 20, 6, 27046, full=False),
        Run("3b", 512, 8, 40, 6, 27965, full=False),
        Run("1b", 65536, 8, 1, 2, 5506),
        Run("1b", 32768, 8, 1, 4, 12025, full=False),
        Run("1b", 16384, 8, 2, 4, 19649, full=False),
        Run("1b", 8192, 8, 3, 4, 29157, full=False),
        Run("1b", 4096, 8, 7, 4, 38535, full=False),
        Run("1b", 2048, 64, 20, 1, 44402, full=False),
        Run("1b", 2048, 32, 20, 1, 45130, full=False),
        Run("1b", 2048, 16, 20, 1, 46037, full=False),
        Run("1b", 2048, 8, 14, 1, 45455, full=False),
        Run("1b", 1024, 8, 18, 4, 48910, full=False),
        Run("1b", 512, 8, 56, 4, 52275, full=False),
    ],
    "a100-80gb": [
        Run("30b", 4096, 8, 1, 21, 814),
        Run("30b", 1024, 8, 6, 21, 946),
        Run("30b", 512, 8, 12, 21, 967),
        Run("13b", 16384, 8, 3, 3, 1431),
        Run("13b", 8192, 8, 5, 3, 1795),
        Run("13b", 4096, 8, 10, 3, 2060),
        Run("13b", 1024, 8, 40, 3, 2330),
        Run("7b", 32768, 8, 2, 2, 1672),
        Run("7b", 16384, 8, 4, 2, 2453),
        Run("7b", 8192, 8, 8, 2, 3206),
        Run("7b", 4096, 8, 16, 2, 3684),
        Run("7b", 1024, 8, 64, 2, 4357),
        Run("3b", 65536, 8, 1, 2, 1767),
        Run("3b", 32768, 8, 3, 6, 3029),
        Run("3b", 16384, 8, 1, 6, 5529, full=False),
        Run("3b", 8192, 8, 3, 6, 7695, full=False),
        Run("3b", 4096, 8, 5, 6, 9457, full=False),
        Run("3b", 2048, 8, 10, 2, 10811, full=False),
        Run("3b", 1024, 8, 20, 6, 11580, full=False),
        Run("3b", 512, 8, 40, 6, 12127, full=False),
        Run("1b", 65536, 8, 1, 2, 3044),
        Run("1b", 32768, 8, 1, 4, 6275, full=False),
        Run("1b", 16384, 8, 2, 4, 9956, full=False),
        Run("1b", 8192, 8, 3, 4, 13814, full=False),
        Run("1b", 4096, 8, 7, 4, 17807, full=False),
        Run("1b", 2048, 8, 14, 4, 20513, full=False),
        Run("1b", 1024, 8, 18, 4, 22112, full=False),
        Run("1b", 512, 8, 56, 4, 23148, full=False),
    ],
}
"""Rows of other models and lengths, by device."""
PARAMETERS = {"7b": 6658859008, "13b": 12853954560, "30b": 29975214080, "70b": 64862437376}
"""As the table prints them, with 2,048 tokens."""
FLASH = 1
"""``submit_benchmarks.py`` runs FlashAttention in Triton, of flash-attn 1.0.9 (``setup.py``)."""
