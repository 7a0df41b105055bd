"""Categories of live bytes and kinds of runs, as summaries, figures and traces show them."""

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
"""Groups of live bytes. Static: always resident. Checkpoints: kept tensors from which others are
recomputed. Saved: other forward tensors that a backward op reads. Gradients: outputs of loss
and backward. Recompute: outputs of repeated forward runs, the recompute working set. Transient:
forward tensors on their way to the next op. Workspace: temporary bytes of the running op."""

RUN_KINDS = ("forward", "recomputed", "loss", "backward", "copy")
"""Kinds of runs. Recomputed: a run of a forward op that is not its first. Copy: a run on a stream
that does not compute, messages included."""
