"""A device: its peak rates, as on a data sheet."""

from __future__ import annotations

from schedsim.workloads import Device

TOY_NPU = Device(
    name="toy-npu",
    flops_per_s={"fp16": 50e12, "bf16": 50e12, "fp32": 12.5e12},
    bytes_per_s=400e9,
    memory_bytes=16 * 10**9,
    source="an example",
)
