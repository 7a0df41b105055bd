"""Devices, and the roofline that times ops."""

from __future__ import annotations

import pytest

from schedsim import SchedsimError
from schedsim.workloads import DEVICES, Roofline, WorkloadOptions, build_workload, get_device


def test_roofline_is_the_slower_of_the_two():
    """312 Tflop/s and 2039 GB/s: 312 Gflop take 1 ms, 4.078 GB take 2 ms, half of peak doubles."""
    device = get_device("a100-80gb")
    assert Roofline(device).time_s(312 * 10**9, 0, "fp16") == 1e-3
    assert Roofline(device).time_s(312 * 10**9, 4_078 * 10**6, "fp16") == 2e-3
    assert Roofline(device, 0.5).time_s(312 * 10**9, 0, "bf16") == 2e-3


@pytest.mark.parametrize("device", DEVICES.values(), ids=lambda device: device.name)
def test_every_device_has_its_source(device):
    """Rates for every number format, halves no slower than fp32, and where they are from."""
    assert set(device.flops_per_s) == {"fp16", "bf16", "fp32"}
    assert device.flops_per_s["fp16"] >= device.flops_per_s["bf16"] >= device.flops_per_s["fp32"]
    assert device.bytes_per_s > 10**11
    assert device.memory_bytes >= 24 * 10**9
    assert device.source


def test_v100_has_no_bf16():
    """It computes bf16 at the fp32 rate, an eighth of its fp16 rate."""
    rates = get_device("v100").flops_per_s
    assert rates["bf16"] == rates["fp32"]


def test_unknown_device_is_refused():
    """With the nearest name."""
    with pytest.raises(SchedsimError, match="h1000") as caught:
        get_device("h1000")
    assert "'h100'" in caught.value.hint


def test_efficiency_scales_every_time():
    """At half of the peaks the step takes twice as long, and the assumptions say so."""
    full = build_workload(WorkloadOptions(preset="gpt2"))
    half = build_workload(WorkloadOptions(preset="gpt2", efficiency=0.5, device="h100"))
    other = build_workload(WorkloadOptions(preset="gpt2", device="h100"))
    assert half.workload.store_all_s == pytest.approx(2 * other.workload.store_all_s)
    assert other.workload.store_all_s < full.workload.store_all_s
    assert "h100 at 0.5 of its peaks" in half.assumptions[2]
