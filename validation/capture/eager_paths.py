"""Libraries that take another path while they are traced: here they take the path of training.

transformers asks ``is_tracing`` before it looks at a mask, and builds an explicit mask while it is
traced: with other bits, more memory, and no fused attention on CUDA. Our trace answers what Python
asks of tensors, so that no such path is needed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

_NAMES = ("is_tracing", "is_fake_tensor")


@contextlib.contextmanager
def eager_paths() -> Iterator[None]:
    """Make transformers, if it is loaded, take the path of a plain step."""
    replaced: list[tuple[Any, str, Any]] = []
    for name, module in list(sys.modules.items()):
        if not name.startswith("transformers."):
            continue
        for function in _NAMES:
            own = vars(module).get(function) if module is not None else None
            if callable(own):
                replaced.append((module, function, own))
    try:
        for module, function, _ in replaced:
            setattr(module, function, _no)
        yield
    finally:
        for module, function, own in replaced:
            setattr(module, function, own)


def _no(*_: Any, **__: Any) -> bool:
    return False
