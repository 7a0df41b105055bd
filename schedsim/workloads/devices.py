"""Devices by name, and the roofline that gives an op its time."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import SchedsimError

DTYPE_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
"""Bytes per element of the number formats of activations."""


@dataclass(frozen=True, slots=True)
class Device:
    """Peak rates of a device, dense (without structured sparsity).

    Attributes
    ----------
    name
        As in ``--device``.
    flops_per_s
        Number format -> peak rate of matrix products; fp32 without TF32.
    bytes_per_s
        Memory bandwidth.
    memory_bytes
        As sold.
    source
        The document the numbers are from.
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
        # It has no bf16 units: bf16 runs at the fp32 rate.
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


def get_device(name: str) -> Device:
    """The device called `name`.

    Raises
    ------
    SchedsimError
        There is none; the hint names the nearest, or all.

    Examples
    --------
    >>> get_device("a100-80gb").flops_per_s["fp16"]
    312000000000000.0
    """
    if name not in DEVICES:
        near = difflib.get_close_matches(name, DEVICES, n=1)
        raise SchedsimError(
            f"--device {name!r} is unknown",
            hint=f"did you mean {near[0]!r}?" if near else f"one of {', '.join(DEVICES)}",
        )
    return DEVICES[name]


@dataclass(frozen=True, slots=True)
class Roofline:
    """Times from a device's peaks: the slower of arithmetic and traffic.

    Parameters
    ----------
    device
        Whose peaks.
    efficiency
        Share of both peaks that is reached, in (0, 1]; 1 by default, which no real step reaches.
        It scales all times alike, so it changes neither plans nor overheads.

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
