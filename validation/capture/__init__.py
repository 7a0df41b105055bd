"""From a model to a graph or a chain, without allocating it."""

from .capture import capture
from .captured import CapturedGraph

__all__ = ["CapturedGraph", "capture"]
