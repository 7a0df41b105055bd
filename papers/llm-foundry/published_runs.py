"""llm-foundry's published training benchmarks of MPT models: settings and throughput.

Of ``scripts/train/benchmarking/README.md``: all rows of 7B and more in bf16 on A100 and H100 with
80 GB whose sequences have 2,048 tokens, and the row with the longest sequence of each model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schedsim.clusters import Architecture, AttentionSizes

_SIZES = {
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}
"""Layers, width, heads: ``scripts/train/yamls/pretrain/mpt-*.yaml``."""


@dataclass(frozen=True)
class Run:
    """A row: model, tokens of a sequence, GPUs, sequences of a micro-batch, micro-batches.

    `tokens` are those per second and GPU; `full`: each block is checkpointed.
    """

    model: str
    seq: int
    gpus: int
    micro: int
    num_micro: int
    tokens: float
    full: bool = True

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
        Run("70b", 2048, 64, 8, 4, 410),
        Run("70b", 2048, 32, 2, 16, 373),
        Run("30b", 8192, 8, 1, 21, 574),
        Run("30b", 2048, 8, 3, 21, 916),
        Run("13b", 32768, 8, 1, 3, 1016),
        Run("13b", 2048, 8, 2, 3, 2262, full=False),
        Run("7b", 65536, 8, 1, 2, 1013),
        Run("7b", 2048, 8, 6, 2, 4641, full=False),
    ],
}
"""Rows by device."""
PARAMETERS = {"7b": 6658859008, "13b": 12853954560, "30b": 29975214080, "70b": 64862437376}
"""As the table prints them, with 2,048 tokens."""
FLASH = 1
"""``submit_benchmarks.py`` runs FlashAttention in Triton, of flash-attn 1.0.9 (``setup.py``)."""
