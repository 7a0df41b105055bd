"""Layers of a ``config.json`` whose attention sees a window of the sequence.

Files since 2025 name the kind of every layer in ``layer_types``. Older ones give the width of the
window, and perhaps how many layers have it; families differ in what they make of that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..errors import SchedsimError
from .architecture import Architecture
from .config_fields import ConfigFields

_KINDS = {"full_attention": False, "sliding_attention": True}

IsWindowed = Callable[[ConfigFields, int], bool]


def _every(fields: ConfigFields, layer: int) -> bool:
    return True


def _if_used(fields: ConfigFields, layer: int) -> bool:
    return fields.flag("use_sliding_window", False)


def _later_if_used(fields: ConfigFields, layer: int) -> bool:
    first = fields.number("max_window_layers", default=28)
    return fields.flag("use_sliding_window", False) and layer >= first


def _later(fields: ConfigFields, layer: int) -> bool:
    return layer >= fields.number("max_window_layers", default=62)


def _unturned_if_used(fields: ConfigFields, layer: int) -> bool:
    turned = fields.get("no_rope_layers")
    if not isinstance(turned, list) or not turned:
        turned = [1, 1, 1, 0]
    return fields.flag("use_sliding_window", False) and not turned[layer % len(turned)]


def _all_but_each(num: int) -> IsWindowed:
    return lambda fields, layer: (layer + 1) % num != 0


def _by_pattern(num: int) -> IsWindowed:
    """All but each `num`-th layer, or as the file says: another number, or ``LLLG``."""

    def windowed(fields: ConfigFields, layer: int) -> bool:
        pattern = fields.get("sliding_window_pattern", num)
        if isinstance(pattern, str) and pattern:
            return pattern[layer % len(pattern)] == "L"
        each = fields.number("sliding_window_pattern", default=num)
        return each > 0 and (layer + 1) % each != 0

    return windowed


WINDOWS: dict[str, tuple[IsWindowed, int]] = {
    "mistral": (_every, 4096),
    "ministral": (_every, 4096),
    "ministral3": (_every, 0),
    "mixtral": (_every, 0),
    "phi3": (_every, 0),
    "starcoder2": (_every, 0),
    "qwen2": (_later_if_used, 4096),
    "qwen3": (_later_if_used, 4096),
    "qwen3_moe": (_if_used, 4096),
    "smollm3": (_unturned_if_used, 0),
    "dots1": (_later, 4096),
    "gemma2": (_all_but_each(2), 4096),
    "gemma3_text": (_by_pattern(6), 4096),
    "gemma3": (_by_pattern(6), 4096),
    "exaone4": (_by_pattern(4), 4096),
    "olmo3": (_all_but_each(4), 4096),
    "gpt_oss": (_all_but_each(2), 128),
}
"""``model_type`` -> which layers have a window where the file does not name their kinds, and its
width where the file has none."""


def with_windows(model: Architecture, kind: str, fields: ConfigFields) -> Architecture:
    """`model` of family `kind`, with the window of its file and the number of layers that have it.

    Raises
    ------
    SchedsimError
        A layer is neither full nor sliding attention.
    """
    if kind not in WINDOWS:
        return model
    is_windowed, default = WINDOWS[kind]
    # A window that the file has as null is none, whatever the family's is.
    width = fields.number("sliding_window", default=0 if "sliding_window" in fields else default)
    kinds = fields.get("layer_types")
    if kinds is None:
        num = sum(is_windowed(fields, i) for i in range(model.num_layers))
    else:
        num = _num_sliding(kinds, model.num_layers, fields.name)
    fields.passed("sliding_window_pattern", "max_window_layers", "use_sliding_window")
    if not (width and num):
        return model
    return replace(model, window=width, num_windowed=num)


def _num_sliding(kinds: object, num_layers: int, name: str) -> int:
    if not isinstance(kinds, list) or not kinds:
        raise SchedsimError(f"{name}: layer_types {kinds!r} is no list of kinds")
    for kind in kinds:
        if not isinstance(kind, str) or kind not in _KINDS:
            raise SchedsimError(
                f"{name}: layer_types {kind!r} has no formula", hint=f"{' and '.join(_KINDS)} have"
            )
    return sum(_KINDS[kinds[i % len(kinds)]] for i in range(num_layers))
