"""A model as a chain of blocks, and any schedule of that chain as an ordinary training step."""

from __future__ import annotations

from .chain_capture import CapturedChain, capture_chain
from .scheduled_blocks import ScheduledBlocks

__all__ = ["CapturedChain", "ScheduledBlocks", "capture_chain"]
