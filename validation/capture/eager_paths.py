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
_EXPERTS = "transformers.integrations.moe"
# Dynamo has no use for a "no" elsewhere: it would break graphs where nothing is gained.
_QUESTIONS_IN_PARTS = (
    ("transformers.masking_utils", "is_tracing"),
    ("transformers.modeling_attn_mask_utils", "is_tracing"),
    (_EXPERTS, "is_torchdynamo_compiling"),
)
# Where code between two graphs collects outputs of layers in a context variable, which Dynamo
# cannot read, every layer would break its graph.
_COLLECTOR = ("transformers.utils.output_capturing", "is_torchdynamo_compiling")
# What has other last bits where it is traced, and what remains of it by a backend.
_MASK = (
    "builds a mask where it is traced, which the plain step leaves out if it masks nothing: such "
    "steps are the plain ones within rounding (without attention_mask, or with in_place=True, they "
    "are equal)"
)
_SCAN = (
    "runs a parallel scan where it is traced, and a loop over tokens where it is not: steps are "
    "the plain ones within rounding"
)
_OTHER_PATHS = {
    "transformers.masking_utils": _MASK,
    "transformers.modeling_attn_mask_utils": _MASK,
    "transformers.models.mamba.modeling_mamba": _SCAN,
    "transformers.models.falcon_mamba.modeling_falcon_mamba": _SCAN,
    "transformers.models.jamba.modeling_jamba": _SCAN,
}


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


class EagerAnswers:
    """Answers to modules of transformers that ask Dynamo whether it traces them.

    For a backend, which sees no call of the model: Dynamo guards the functions by which modules
    ask, so that these stay theirs.

    Attributes
    ----------
    others : list[str]
        Lines on modules that were told yes, and take a path with other last bits than the plain
        step.
    masks : list[str]
        Lines on those whose masks have other last bits where the kernel of attention has.
    """

    def __init__(self) -> None:
        self.others: list[str] = []
        self.masks: list[str] = []

    def __call__(self, module: str) -> bool | None:
        """The answer to `module`; ``None`` for Dynamo's own."""
        path = _OTHER_PATHS.get(module)
        if path is not None:
            (self.masks if path is _MASK else self.others).append(f"{module} {path}")
        return False if module == _EXPERTS else None


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
