"""One way to spend less memory, with its price; and a table of several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schedsim.units import format_bytes, format_seconds


@dataclass(frozen=True)
class Way:
    """One way to spend less memory, with its price.

    Attributes
    ----------
    chunks, num_parts, offload
        What is done: number of chunks by piece, number of micro-batches, copies to the host.
    status
        ``"chosen"``, ``"fits"``, ``"fits, not allowed"``, ``"does not fit"``, ``"slower"`` (its
        ops alone take longer than the best plan, so that it was not planned) or ``"refused"``.
    step_s, peak_bytes, store_all_bytes
        Predictions for a whole step; ``None`` where there is no plan.
    same_bits
        Whether its gradients equal those of the plain step to the bit; else within rounding.
    note
        Why the way is refused, or its least budget; with copies, the host memory that they take.
    """

    chunks: Mapping[str, int]
    num_parts: int
    offload: bool
    status: str
    step_s: float | None = None
    peak_bytes: int | None = None
    store_all_bytes: int | None = None
    note: str = ""

    @property
    def name(self) -> str:
        """The way in words."""
        words = [f"{piece} in {num} chunks" for piece, num in self.chunks.items()]
        words += [f"{self.num_parts} micro-batches"] if self.num_parts > 1 else []
        words += ["offload"] if self.offload else []
        return ", ".join(words) or "recompute alone"

    @property
    def same_bits(self) -> bool:
        """Whether nothing is rounded differently."""
        return not any(num > 1 for num in self.chunks.values()) and self.num_parts == 1

    def to_dict(self) -> dict[str, Any]:
        """The way as JSON-compatible values."""
        return {
            "name": self.name,
            "chunks": dict(self.chunks),
            "num_parts": self.num_parts,
            "offload": self.offload,
            "status": self.status,
            "step_s": self.step_s,
            "peak_bytes": self.peak_bytes,
            "store_all_bytes": self.store_all_bytes,
            "same_bits": self.same_bits,
            "note": self.note,
        }


def table(ways: list[Way]) -> list[str]:
    """Lines of a table of `ways`."""
    rows = [("way to spend less", "peak", "step", "bits", "")]
    for way in ways:
        peak = format_bytes(way.peak_bytes) if way.peak_bytes is not None else "-"
        step = format_seconds(way.step_s) if way.step_s is not None else "-"
        bits = "same" if way.same_bits else "rounded"
        rows.append(
            (way.name, peak, step, bits, f"{way.status}{': ' if way.note else ''}{way.note}")
        )
    widths = [max(len(row[k]) for row in rows) for k in range(4)]
    lines = []
    for name, peak, step, bits, status in rows:
        name, bits = name.ljust(widths[0]), bits.ljust(widths[3])
        lines.append(f"{name}  {peak:>{widths[1]}}  {step:>{widths[2]}}  {bits}  {status}".rstrip())
    return lines
