"""The options of a model's step: ``--accumulate``, ``--chunk`` and ``--ways``."""

from __future__ import annotations

from ...errors import SchedsimError
from ..options.typed_sizes import read_count


def read_accumulate(text: str | None) -> int | str | None:
    """``--accumulate`` as a number or ``"auto"``."""
    if text is None or text == "auto":
        return text
    if (count := read_count(text)) is not None:
        return count
    raise SchedsimError(
        f"--accumulate {text} is not understood", hint="auto, or a number of micro-batches"
    )


def read_chunk(text: str | None) -> dict[str, int | str] | str | None:
    """``--chunk`` as `schedsim.rematerialize` takes it."""
    if text is None or text == "auto":
        return text
    found: dict[str, int | str] = {}
    for item in text.split(","):
        piece, _, num = item.partition("=")
        chosen = num if num == "auto" else read_count(num)
        if piece not in ("head", "mlp") or chosen is None:
            raise SchedsimError(
                f"--chunk {text} is not understood", hint="auto, or head=8,mlp=4, or head=auto"
            )
        found[piece] = chosen
    return found
