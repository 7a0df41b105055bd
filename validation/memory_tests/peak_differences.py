"""Why a peak has grown, explained by the names of tensors."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from schedsim.units import format_bytes_change, format_bytes_short

from .step_peak import HeldTensor, StepPeak, in_words

_MOST_LINES = 8


class _TensorChange(NamedTuple):
    bytes: int
    name: str
    what: str
    each: int


def explain_difference(old: StepPeak, new: StepPeak) -> list[str]:
    """Lines like ``+302 MB: layers.3.attn.softmax now kept for its backward``, largest first.

    Equal differences in repeated layers share a line. The bytes of all lines add up to the
    difference of the peaks. O(tensors).

    Examples
    --------
    >>> old = StepPeak("m", 4, "a", (HeldTensor("a", 4, "kept", "grad.a"),))
    >>> held = (*old.tensors, HeldTensor("b.1.mul", 8, "kept", "grad.b.1.mul"))
    >>> explain_difference(old, StepPeak("m", 12, "a", held))
    ['+8 B: `b.1.mul` now kept for its backward']
    """
    groups: dict[tuple[str, str, bool], list[_TensorChange]] = {}
    for change in _changes(old, new):
        key = (_pattern(change.name), _pattern(change.what), change.bytes > 0)
        groups.setdefault(key, []).append(change)
    ordered = sorted(groups.values(), key=lambda group: -abs(sum(c.bytes for c in group)))
    lines = [_line(group) for group in ordered[:_MOST_LINES]]
    rest = [change for group in ordered[_MOST_LINES:] for change in group]
    if rest:
        total = sum(change.bytes for change in rest)
        lines.append(f"{format_bytes_change(total)}: {len(rest)} other tensors")
    if new.op != old.op:
        lines.append(f"the peak is at {new.op}, and was at {old.op}")
    return lines


def _changes(old: StepPeak, new: StepPeak) -> list[_TensorChange]:
    before, after = _by_name(old), _by_name(new)
    changes = []
    for name, tensor in after.items():
        was = before.get(name)
        if was is None:
            changes.append(_TensorChange(tensor.size_bytes, name, _now(tensor), tensor.size_bytes))
        elif was.size_bytes != tensor.size_bytes:
            what = f"was {format_bytes_short(was.size_bytes)} ({tensor.role})"
            size = tensor.size_bytes - was.size_bytes
            changes.append(_TensorChange(size, name, what, tensor.size_bytes))
    for name, was in before.items():
        if name not in after:
            what = "no longer kept" if was.role == "kept" else f"no longer there ({was.role})"
            changes.append(_TensorChange(-was.size_bytes, name, what, was.size_bytes))
    return changes


def _by_name(peak: StepPeak) -> dict[str, HeldTensor]:
    """Name -> tensor; if names are equal, the later tensors are numbered."""
    found: dict[str, HeldTensor] = {}
    counts: Counter[str] = Counter()
    for tensor in peak.tensors:
        counts[tensor.name] += 1
        number = counts[tensor.name]
        found[tensor.name if number == 1 else f"{tensor.name} ({number})"] = tensor
    return found


def _now(tensor: HeldTensor) -> str:
    if tensor.role == "kept":
        return "now " + in_words(tensor).removeprefix(f"{tensor.name} ")
    what = {"working": "now alive at the peak", "gradient": "now there at the peak"}
    return what.get(tensor.role, f"new ({tensor.role})")


def _pattern(text: str) -> str:
    """`text` with the numbers of layers left out."""
    return re.sub(r"(?<=\.)\d+(?=\.)|(?<!\S)\d+(?=\.)", "*", text)


def _line(group: list[_TensorChange]) -> str:
    total = format_bytes_change(sum(change.bytes for change in group))
    first = group[0]
    if len(group) == 1:
        return f"{total}: `{first.name}` {first.what}"
    sizes = {change.each for change in group}
    each = f" of {format_bytes_short(first.each)}" if len(sizes) == 1 else ""
    what = _pattern(first.what)
    return f"{total}: `{_pattern(first.name)}` ({len(group)} tensors{each}) {what}"
