"""Calibrations: the share of its data sheet that a device reaches, fitted to a measured profile."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schedsim.errors import SchedsimError
from schedsim.workloads.devices import Device, get_device

from ..capture.to_graph import op_calls
from .table import Costs
from .work import Work, work_of

if TYPE_CHECKING:
    from ..capture.captured import CapturedGraph

SCHEMA = "schedsim.calibration/1"
KINDS = ("matmul", "convolution", "attention", "memory")


@dataclass(frozen=True)
class Calibration:
    """Efficiencies by kind of op.

    Attributes
    ----------
    efficiency
        Kind of op (``matmul``, ``convolution``, ``attention``, ``memory``) -> share of the roofline
        that is reached, above 0; 1 for a missing kind.
    launch_s
        Least seconds of any op.
    source
        What the calibration was fitted to.
    """

    efficiency: Mapping[str, float] = field(default_factory=dict)
    launch_s: float = 0.0
    source: str = ""

    def time_s(self, work: Work, device: Device) -> float:
        """Seconds of an op on `device`."""
        share = self.efficiency.get(work.kind, 1.0)
        return max(_ideal_s(work, device) / share, self.launch_s)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the calibration as a JSON file."""
        document = {
            "schema": SCHEMA,
            "efficiency": dict(self.efficiency),
            "launch_s": self.launch_s,
            "source": self.source,
        }
        Path(path).write_text(json.dumps(document, indent=2) + "\n")


def _ideal_s(work: Work, device: Device) -> float:
    arithmetic = work.flops / device.flops_per_s[work.dtype] if work.kind != "memory" else 0.0
    return max(arithmetic, work.moved_bytes / device.bytes_per_s)


def load_calibration(path: str | PathLike[str]) -> Calibration:
    """The calibration in the JSON file at `path`.

    Raises
    ------
    SchedsimError
        The file cannot be read, or a field is missing or out of range.
    """
    try:
        document: Any = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise SchedsimError(f"calibration {path} cannot be read: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise SchedsimError(
            f"{path} is no calibration",
            hint=f"its schema must be {SCHEMA!r}; fit_calibration makes one",
        )
    efficiency = document.get("efficiency", {})
    launch_s = document.get("launch_s", 0.0)
    for kind, share in efficiency.items():
        if kind not in KINDS or not _is_positive(share):
            raise SchedsimError(
                f"{path}: efficiency.{kind}: {share!r} is not a share above 0",
                hint=f"kinds are {', '.join(KINDS)}",
            )
    if launch_s != 0 and not _is_positive(launch_s):
        raise SchedsimError(f"{path}: launch_s: {launch_s!r} is not a time of 0 or more")
    return Calibration(efficiency, float(launch_s), str(document.get("source", path)))


def _is_positive(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value > 0


def fit_calibration(captured: CapturedGraph, measured: Costs, device_name: str) -> Calibration:
    """Efficiencies of the device called `device_name` from a profile measured on it.

    The efficiency of a kind is the sum of its roofline times over the sum of its measured times.
    The time to start a kernel, that of the quickest op, is first subtracted from the measured
    times.
    """
    device = get_device(device_name)
    program = captured.program
    ideal = dict.fromkeys(KINDS, 0.0)
    real = dict.fromkeys(KINDS, 0.0)
    times = [t for t in measured.time_s.values() if t > 0]
    launch_s = min(times, default=0.0)
    for i in op_calls(program):
        call = program.calls[i]
        time_s = measured.time_s.get(call.name, 0.0)
        if i == program.seed or time_s <= 2 * launch_s:
            continue
        work = work_of(program, call)
        ideal[work.kind] += _ideal_s(work, device)
        real[work.kind] += time_s
    efficiency = {kind: ideal[kind] / real[kind] for kind in KINDS if real[kind] and ideal[kind]}
    return Calibration(efficiency, launch_s, f"{measured.source}, {captured.graph.name}")
