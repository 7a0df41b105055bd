"""A model as a chain of blocks, and any schedule of that chain as an ordinary training step."""

from __future__ import annotations

from .capture import CapturedChain, capture_chain
from .module import ScheduledModule

__all__ = ["CapturedChain", "ScheduledModule", "capture_chain"]
