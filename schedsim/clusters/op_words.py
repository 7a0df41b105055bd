"""Ops of a rank in words, by their names in the step."""

from __future__ import annotations

_OF_UNITS = {
    "gather": "gathering the weights of",
    "unpack": "unpacking the gathered weights of",
    "pack": "packing the gradients of",
    "reduce": "reducing the gradients of",
    "sum": "adding up the gradients of",
}
_OF_STAGES = {
    "receive": "the message with the input of",
    "receive'": "the message with the gradient of the input of",
    "offload": "copying to the host what is kept of",
    "fetch": "copying back what was kept of",
}
_OF_CHUNKS = {"wide": "the wide logits", "loss": "the loss", "picked": "the loss's gradient"}
_OF_ENDS = {
    "embed": "the embedding",
    "norm": "the last norm",
    "logits": "the head",
    "cap": "the cap of the logits",
} | _OF_CHUNKS
_UNITS = {"ends": "embedding and head", "embedding": "the embedding", "head": "the head"}


def in_words(op: str) -> str:
    """The op of a rank in words. Layers, micro-batches and chunks are counted from 0.

    Examples
    --------
    >>> in_words("gate' 30 1"), in_words("q 3 0")
    ('the backward of gate in layer 30, micro-batch 1', 'q in layer 3, micro-batch 0')
    >>> in_words("loss 3 0"), in_words("norm' 2")
    ('the loss, chunk 3, micro-batch 0', 'the backward of the last norm, micro-batch 2')
    >>> in_words("gather W 7 0"), in_words("reduce ends end")
    ('gathering the weights of layer 7', 'reducing the gradients of embedding and head')
    >>> in_words("gate' 2 0 w"), in_words("optimizer")
    ("the backward of gate's weights in layer 2, micro-batch 0", 'optimizer')
    """
    what, *rest = op.split()
    if what in _OF_UNITS:
        return f"{_OF_UNITS[what]} {_unit(next(one for one in rest if one != 'W'))}"
    if what in _OF_STAGES:
        return f"{_OF_STAGES[what]} layer {rest[0]}, micro-batch {rest[1]}"
    if what == "add":
        return (
            f"adding up the gradient of {rest[0].removeprefix('d.').split('+')[0]}{_in(rest[1:])}"
        )
    own = what.removesuffix("'")
    back = "the backward of " if own != what else ""
    if own in _OF_CHUNKS and len(rest) == 2:
        return f"{back}{_OF_CHUNKS[own]}, chunk {rest[0]}, micro-batch {rest[1]}"
    if own in _OF_ENDS and len(rest) == 1:
        return f"{back}{_OF_ENDS[own]}, micro-batch {rest[0]}"
    if len(rest) < 2 or not rest[0].isdecimal():
        return op
    weights = "'s weights" if rest[-1] == "w" else ""
    again = " again" if rest[-1] == "again" else ""
    return f"{back}{own}{weights}{again}{_in(rest)}"


def _in(rest: list[str]) -> str:
    return f" in layer {rest[0]}, micro-batch {rest[1]}"


def _unit(name: str) -> str:
    return f"layer {name}" if name.isdecimal() else _UNITS.get(name, name)
