"""Golden files: the peak of a step as it was accepted, in a file that a review can read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from schedsim.errors import SchedsimError
from schedsim.files.atomic import write_atomically
from schedsim.units import format_bytes, format_bytes_change, parse_bytes

from .peak_differences import explain_difference
from .step_peak import HeldTensor, StepPeak

FORMAT = "schedsim-peak"
VERSION = 1
_SMALL = 10_000  # tensors smaller than the peak divided by this are summed up


@dataclass(frozen=True)
class Golden:
    """An accepted peak.

    Attributes
    ----------
    peak : StepPeak
        Small tensors are summed up, a sum for each role.
    torch_version : str
        The version of torch by which the peak was measured.
    """

    peak: StepPeak
    torch_version: str


def summed_up(peak: StepPeak) -> StepPeak:
    """`peak` with tensors under a 10,000th of it summed up for each role."""
    least = peak.total_bytes // _SMALL
    large = [one for one in peak.tensors if one.size_bytes >= least]
    small: dict[str, int] = {}
    for one in peak.tensors:
        if one.size_bytes < least:
            small[one.role] = small.get(one.role, 0) + one.size_bytes
    rest = [HeldTensor(f"small tensors, {k}", size, k) for k, size in sorted(small.items())]
    return StepPeak(
        peak.name, peak.total_bytes, peak.op, (*large, *rest), peak.kernels, peak.compiled
    )


def write_golden(peak: StepPeak, path: Path) -> None:
    """Write `peak` to `path`, one tensor a line; equal peaks give equal files."""
    peak = summed_up(peak)
    head = {
        "format": FORMAT,
        "version": VERSION,
        "torch": torch.__version__.partition("+")[0],
        "model": peak.name,
        "kernels": peak.kernels,
        "compiled": peak.compiled,
        "peak_bytes": peak.total_bytes,
        "op": peak.op,
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    rows = [json.dumps([t.name, t.size_bytes, t.role, t.reader]) for t in peak.tensors]
    body = ",\n  ".join(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "{\n" + "\n".join(lines) + f'\n "tensors": [\n  {body}\n ]\n}}\n')


def read_golden(path: Path) -> Golden:
    """The accepted peak in `path`.

    Raises
    ------
    SchedsimError
        The file is no golden file, or its parts do not add up.
    """
    hint = "write it again with --schedsim-update"
    try:
        data: dict[str, Any] = json.loads(path.read_text())
        if data["format"] != FORMAT or data["version"] != VERSION:
            raise SchedsimError(f"{path} is no golden file of version {VERSION}", hint=hint)
        tensors = tuple(
            HeldTensor(str(name), int(size), str(role), str(reader))
            for name, size, role, reader in data["tensors"]
        )
        peak = StepPeak(
            name=str(data["model"]),
            total_bytes=int(data["peak_bytes"]),
            op=str(data["op"]),
            tensors=tensors,
            kernels=str(data["kernels"]),
            compiled=bool(data["compiled"]),
        )
        torch_version = str(data["torch"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise SchedsimError(f"{path} cannot be read as a golden file: {what}", hint=hint) from error
    if sum(one.size_bytes for one in tensors) != peak.total_bytes:
        raise SchedsimError(f"{path}: its tensors do not add up to its peak", hint=hint)
    return Golden(peak, torch_version)


def check_golden(peak: StepPeak, path: Path, allowed: str | int = 0) -> list[str]:
    """The failure of `peak` beside the accepted peak; nothing where it has not grown.

    Parameters
    ----------
    allowed
        Growth that passes: bytes, ``"10MB"`` or ``"1%"`` of the accepted peak.

    Returns
    -------
    list of str
        The failure in words, with tensors named; empty where the peak is accepted.

    Raises
    ------
    SchedsimError
        The file cannot be read, or belongs to another kind of step.
    """
    golden = read_golden(path)
    old = golden.peak
    for what in ("kernels", "compiled"):
        if getattr(old, what) != getattr(peak, what):
            raise SchedsimError(
                f"{path} is of {what}={getattr(old, what)!r}, the test of {getattr(peak, what)!r}",
                hint="write it again with --schedsim-update, or give the test another name",
            )
    growth = peak.total_bytes - old.total_bytes
    if growth <= _allowed(allowed, old.total_bytes):
        return []
    lines = [
        f"the peak is {format_bytes(peak.total_bytes)}, {format_bytes_change(growth)} over the "
        f"accepted {format_bytes(old.total_bytes)}",
        *explain_difference(old, summed_up(peak)),
    ]
    here = torch.__version__.partition("+")[0]
    if golden.torch_version != here:
        lines.append(f"(accepted with torch {golden.torch_version}; this is {here})")
    return [*lines, "if it is meant: --schedsim-update, and review the file"]


def _allowed(allowed: str | int, accepted: int) -> int:
    if isinstance(allowed, int):
        return allowed
    text = allowed.strip()
    if not text.endswith("%"):
        return parse_bytes(text)
    try:
        return int(accepted * float(text[:-1]) / 100)
    except ValueError as error:
        raise SchedsimError(
            f"allowed={allowed!r} is no share", hint="write it like '1%' or '10MB'"
        ) from error
