"""The options of a model's step: ``--accumulate``, ``--chunk`` and ``--ways``."""

from __future__ import annotations

from ...errors import SchedsimError


def read_accumulate(text: str | None) -> int | str | None:
    """``--accumulate`` as a number or ``"auto"``."""
    if text is None or text == "auto":
        return text
    if text.isdigit() and int(text):
        return int(text)
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
        if piece not in ("head", "mlp") or not (num == "auto" or (num.isdigit() and int(num))):
            raise SchedsimError(
                f"--chunk {text} is not understood", hint="auto, or head=8,mlp=4, or head=auto"
            )
        found[piece] = num if num == "auto" else int(num)
    return found
