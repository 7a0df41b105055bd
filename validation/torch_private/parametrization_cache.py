"""The cache of `torch.nn.utils.parametrize.cached()`, which a loop may have around a forward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn.utils import parametrize

__all__ = ["own_cached_weights"]


@contextmanager
def own_cached_weights() -> Iterator[None]:
    """Leave the loop's cache alone in the block, whose steps are not the loop's.

    Weights that it holds are leaves there, so that a backward ends at them and frees nothing of
    the loop's graph. Weights that the block makes go with it.
    """
    module: Any = parametrize
    held = module._cache
    module._cache = {key: it.detach().requires_grad_(it.requires_grad) for key, it in held.items()}
    try:
        yield
    finally:
        module._cache = held
