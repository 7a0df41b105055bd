"""Categories of live bytes, and kinds of runs: what summaries, figures and traces tell apart."""

from __future__ import annotations

CATEGORIES = (
    "static",
    "checkpoints",
    "saved",
    "gradients",
    "recompute",
    "transient",
    "workspace",
)
"""Groups of live bytes. Static: always resident. Checkpoints: kept tensors that something is
recomputed from. Saved: other forward tensors that a backward op reads. Gradients: outputs of loss
and backward. Recompute: outputs of repeated forward runs, the recompute working set. Transient:
forward tensors on their way to the next op. Workspace: temporary bytes of the running op."""

RUN_KINDS = ("forward", "recomputed", "loss", "backward", "copy")
"""Kinds of runs. Recomputed: a run of a forward op that is not its first. Copy: whatever runs on a
stream that does not compute, messages included."""
