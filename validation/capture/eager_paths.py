"""Libraries that take another path while they are traced: here they take the path of training.

transformers asks ``is_tracing`` before it looks at a mask, and builds an explicit mask while it is
traced: with other bits, more memory, and no fused attention on CUDA. Our trace answers what Python
asks of tensors, so that no such path is needed; Dynamo breaks its graph where a value is asked for.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_QUESTIONS = ("is_tracing", "is_fake_tensor")
# Dynamo has no use for a "no" elsewhere: it would break graphs where nothing is gained.
_QUESTIONS_IN_PARTS = (
    ("transformers.masking_utils", "is_tracing"),
    ("transformers.modeling_attn_mask_utils", "is_tracing"),
    ("transformers.integrations.moe", "is_torchdynamo_compiling"),
)
# Where code between two graphs collects outputs of layers in a context variable, which Dynamo
# cannot read, every layer would break its graph.
_COLLECTOR = ("transformers.utils.output_capturing", "is_torchdynamo_compiling")


@contextlib.contextmanager
def eager_paths() -> Iterator[None]:
    """Make transformers, if it is loaded, take the path of a plain step."""
    names = [name for name in list(sys.modules) if name.startswith("transformers.")]
    with _answered({(name, question): _no for name in names for question in _QUESTIONS}):
        yield


@contextlib.contextmanager
def eager_paths_in_parts() -> Iterator[None]:
    """Make masks and experts of transformers take the path of a plain step while Dynamo traces.

    A mask is then looked at between two graphs, as the plain step looks at it.
    """
    with _answered(dict.fromkeys(_QUESTIONS_IN_PARTS, _no) | {_COLLECTOR: _yes}):
        yield


@contextlib.contextmanager
def _answered(answers: Mapping[tuple[str, str], Callable[..., bool]]) -> Iterator[None]:
    """Have functions, by module and name, give these answers in the block."""
    replaced: list[tuple[Any, str, Any]] = []
    try:
        for (name, function), answer in answers.items():
            module = sys.modules.get(name)
            own = vars(module).get(function) if module is not None else None
            if callable(own):
                replaced.append((module, function, own))
                setattr(module, function, answer)
        yield
    finally:
        for module, function, own in replaced:
            setattr(module, function, own)


def _no(*_: Any, **__: Any) -> bool:
    return False


def _yes(*_: Any, **__: Any) -> bool:
    return True
