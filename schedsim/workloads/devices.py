"""Devices by name or from a file, and the roofline that gives an op its time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checks.checked_arguments import checked
from ..checks.value_checks import check_bytes, shown
from ..errors import InvalidWorkloadError, SchedsimError, did_you_mean
from ..files.reader import Reader, parse_json
from ..plugins import load_plugin, plugin_names

GROUP = "schedsim.devices"
DEVICE_SCHEMA = "schedsim.device/1"
# A rate above this has a wrong unit: it is a thousand times the rate of the fastest computer.
_MAX_RATE = 1e21

DTYPE_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
"""Bytes per element of the number formats of activations."""


@dataclass(frozen=True, slots=True)
class Device:
    """Peak rates of a device, dense (without structured sparsity).

    Attributes
    ----------
    name
        The name, as ``--device`` takes it.
    flops_per_s
        Number format -> peak rate of matrix products; fp32 without TF32.
    bytes_per_s
        Memory bandwidth.
    memory_bytes
        Memory as advertised.
    source
        The document that the numbers come from.
    """

    name: str
    flops_per_s: Mapping[str, float]
    bytes_per_s: float
    memory_bytes: int
    source: str


def _device(
    name: str,
    half: float,
    single: float,
    bandwidth: float,
    memory_gb: int,
    source: str,
    *,
    bf16: float | None = None,
) -> Device:
    """Rates in Tflop/s, bandwidth in GB/s; `bf16` where it differs from fp16."""
    rates = {"fp16": half * 1e12, "bf16": (bf16 or half) * 1e12, "fp32": single * 1e12}
    return Device(name, rates, bandwidth * 1e9, memory_gb * 10**9, source)


# 64 cores x 2.45 GHz x two 256-bit fused multiply-adds a cycle: 5.02 Tflop/s; 8 x DDR4-3200:
# 204.8 GB/s. It has no half-precision arithmetic: sums are taken in fp32.
_CPU_RATE = 64 * 2.45e9 * 32 / 1e12

DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        _device("a100-80gb", 312, 19.5, 2039, 80, "NVIDIA A100 data sheet (SXM)"),
        _device("a100-40gb", 312, 19.5, 1555, 40, "NVIDIA A100 data sheet (SXM)"),
        _device("h100", 989, 67, 3350, 80, "NVIDIA H100 data sheet (SXM), dense"),
        _device("h200", 989, 67, 4800, 141, "NVIDIA H200 data sheet (SXM), dense"),
        # The V100 has no bf16 units: bf16 runs at the fp32 rate.
        _device("v100", 125, 15.7, 900, 32, "NVIDIA V100 data sheet (SXM2)", bf16=15.7),
        _device("rtx4090", 165.2, 82.6, 1008, 24, "NVIDIA Ada architecture paper, fp32 sums"),
        _device("rtx3090", 71, 35.6, 936, 24, "NVIDIA Ampere GA102 paper, fp32 sums"),
        _device("l40s", 362, 91.6, 864, 48, "NVIDIA L40S data sheet, dense"),
        _device("mi300x", 1307.4, 163.4, 5300, 192, "AMD Instinct MI300X data sheet, dense"),
        _device(
            "cpu",
            _CPU_RATE,
            _CPU_RATE,
            204.8,
            4096,
            "AMD EPYC 7763 data sheet, one socket at base clock; memory: the most it takes",
        ),
    )
}


@checked
def get_device(name: str) -> Device:
    """The device called `name`: one of `DEVICES`, of another package, or of a file ``NAME.json``.

    Raises
    ------
    SchedsimError
        There is no such device; the hint gives the nearest name, or all names.
    InvalidWorkloadError
        The file is malformed.
    OSError
        The file cannot be read.

    Examples
    --------
    >>> get_device("a100-80gb").flops_per_s["fp16"]
    312000000000000.0
    """
    if is_device_file(name):
        return read_device(name)
    if name in DEVICES:
        return DEVICES[name]
    known = device_names()
    if name in known:
        device: Device = load_plugin(GROUP, name, _of_plugin)
        return device
    able = f"one of {', '.join(known)}, or a file NAME.json"
    raise SchedsimError(
        f"--device {name!r} is unknown",
        hint=did_you_mean(name, known, able),
    )


def device_names() -> list[str]:
    """Names of schedsim's devices and of other packages' devices; imports nothing."""
    return [*DEVICES, *plugin_names(GROUP, DEVICES)]


def is_device_file(name: str) -> bool:
    """Whether `name` is the path of a device file."""
    return name.endswith(".json")


def read_device(path: str | os.PathLike[str]) -> Device:
    """The device that the JSON file at `path` describes.

    The file holds ``{"schema": "schedsim.device/1", "name": ..., "flops_per_s": {"fp16": ...,
    "bf16": ..., "fp32": ...}, "bytes_per_s": ..., "memory_bytes": ..., "source": ...}``: rates per
    second, dense, and where they are from. Every field but `source` must be there, and no other.

    Raises
    ------
    InvalidWorkloadError
        The message names the file and the field.
    """
    try:
        reader = Reader(parse_json(Path(path).read_bytes()), "")
        reader.take_choice("schema", (DEVICE_SCHEMA,))
        name = reader.take("name", str)
        table = reader.take_object("flops_per_s")
        rates = {dtype: _rate(table, dtype, "flops_per_s.") for dtype in DTYPE_BYTES}
        table.finish()
        bandwidth = _rate(reader, "bytes_per_s")
        memory_bytes = reader.take_bytes("memory_bytes")
        source = reader.take("source", str, "")
        reader.finish()
    except InvalidWorkloadError as error:
        raise InvalidWorkloadError(f"{path}: {error.message}", hint=error.hint) from None
    return Device(name, rates, bandwidth, memory_bytes, source or f"file {path}")


def _rate(reader: Reader, name: str, within: str = "") -> float:
    value = reader.take_number(name)
    if not 0 < value <= _MAX_RATE:
        raise InvalidWorkloadError(
            f"{shown(value)} is not a rate above 0, per second", path=f"{within}{name}"
        )
    return value


def _of_plugin(name: str, found: Any) -> Device:
    """The device behind an entry point, with the checks of a device file."""
    if not isinstance(found, Device):
        raise SchedsimError(f"{found!r} is no schedsim.workloads.Device")
    if found.name != name:
        raise SchedsimError(f"it is a device called {found.name!r}")
    lacking = [dtype for dtype in DTYPE_BYTES if dtype not in found.flops_per_s]
    if lacking:
        raise SchedsimError(f"its flops_per_s lacks {lacking[0]}")
    check_bytes(found.memory_bytes, "memory_bytes")
    if not all(0 < rate <= _MAX_RATE for rate in (*found.flops_per_s.values(), found.bytes_per_s)):
        raise SchedsimError("one of its rates is not above 0, per second")
    return found


@dataclass(frozen=True, slots=True)
class Roofline:
    """Times from a device's peaks: the larger of arithmetic time and memory-traffic time.

    Parameters
    ----------
    device
        The device whose peak rates are used.
    efficiency
        Share of both peaks that ops reach, in (0, 1]; the default 1 is out of reach of a real step.
        The share scales all times alike, so it changes neither plans nor overheads.

    References
    ----------
    Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
    """

    device: Device
    efficiency: float = 1.0

    def time_s(self, flops: int, moved_bytes: int, dtype: str) -> float:
        """Seconds for `flops` in number format `dtype` and `moved_bytes` of memory traffic.

        Examples
        --------
        >>> Roofline(get_device("a100-80gb")).time_s(312 * 10**9, 0, "fp16")
        0.001
        """
        arithmetic = flops / self.device.flops_per_s[dtype]
        return max(arithmetic, moved_bytes / self.device.bytes_per_s) / self.efficiency
