"""ResNets, devices, synthetic chains and measured times."""

from __future__ import annotations

import json

import pytest

from schedsim import InvalidWorkloadError, SchedsimError, Schedule, simulate
from schedsim.workloads import (
    DEVICES,
    SYNTHETIC,
    ResNetConfig,
    Roofline,
    WorkloadOptions,
    build_workload,
    get_device,
    resnet_model,
    variants,
)


@pytest.mark.parametrize(
    ("depth", "count"), [(50, 25_557_032), (101, 44_549_160), (152, 60_192_808)]
)
def test_resnet_parameters(depth, count):
    """As torchvision's models have."""
    assert resnet_model(ResNetConfig(depth=depth)).num_parameters == count


def test_resnet50_flops():
    """4.09 G multiply-adds at 224 x 224, the figure that torchvision lists."""
    model = resnet_model(ResNetConfig(depth=50, batch=1))
    flops = sum(
        op.flops
        for stage in model.stages
        for op in stage.forward
        if op.name.startswith(("conv", "down", "fc"))
    )
    assert round(flops / 2e9, 2) == 4.09


@pytest.mark.parametrize("depth", [50, 152])
def test_resnet_chain_covers_its_ops(depth):
    """A stage per residual block with stem and head, as large at the peak as its ops."""
    preset = f"resnet-{depth}"
    chain = build_workload(WorkloadOptions(preset=preset)).workload
    graph = build_workload(WorkloadOptions(preset=preset, granularity="op")).workload
    assert chain.num_stages == {50: 16, 152: 50}[depth] + 2
    of_chain = simulate(chain, Schedule.store_all(chain)).peak_bytes
    of_graph = simulate(graph, Schedule.store_all(graph)).peak_bytes
    assert of_graph <= of_chain <= 1.01 * of_graph


def test_roofline_is_the_slower_of_the_two():
    """312 Tflop/s and 2039 GB/s: 312 Gflop take 1 ms, 4.078 GB take 2 ms, half of peak doubles."""
    device = get_device("a100-80gb")
    assert Roofline(device).time_s(312 * 10**9, 0, "fp16") == 1e-3
    assert Roofline(device).time_s(312 * 10**9, 4_078 * 10**6, "fp16") == 2e-3
    assert Roofline(device, 0.5).time_s(312 * 10**9, 0, "bf16") == 2e-3


def test_every_device_has_its_source():
    """Rates for every number format, and where they are from."""
    for device in DEVICES.values():
        assert set(device.flops_per_s) == {"fp16", "bf16", "fp32"}
        assert device.source
    with pytest.raises(SchedsimError, match="h1000"):
        get_device("h1000")


@pytest.mark.parametrize("name", list(SYNTHETIC))
def test_synthetic_chains_depend_on_the_seed_alone(name):
    """The same twice, of the length asked, and plannable."""
    options = WorkloadOptions(synthetic=name, layers=7, seed=3)
    chain = build_workload(options).workload
    assert chain == build_workload(options).workload
    assert chain.num_stages == 7
    assert simulate(chain, Schedule.store_all(chain)).peak_bytes > 0


def test_measured_times_replace_the_rooflines(tmp_path):
    """Every stage by name; a missing one, or one too many, is refused with its path."""
    file = tmp_path / "times.json"
    times = {"layer0": {"forward_s": 1.5, "backward_s": 2.5}}
    file.write_text(json.dumps({"schema": "schedsim.times/1", "stages": times}))
    chain = build_workload(WorkloadOptions(layers=1, times_path=str(file))).workload
    assert chain.store_all_s == 4
    with pytest.raises(InvalidWorkloadError, match=r"stages\.layer1"):
        build_workload(WorkloadOptions(layers=2, times_path=str(file)))
    times["extra"] = times["layer0"]
    file.write_text(json.dumps({"schema": "schedsim.times/1", "stages": times}))
    with pytest.raises(InvalidWorkloadError, match=r"stages\.extra"):
        build_workload(WorkloadOptions(layers=1, times_path=str(file)))


def test_variants_lower_the_memory():
    """Each change offered, but finer stages, keeps fewer bytes than the original."""
    options = WorkloadOptions(layers=4, batch=2)
    chain = build_workload(options).workload
    most = simulate(chain, Schedule.store_all(chain)).peak_bytes
    labels = []
    for label, changed in variants(options):
        labels.append(label)
        other = build_workload(changed).workload
        assert simulate(other, Schedule.store_all(other)).peak_bytes <= most
    assert "--attention flash" in labels
    assert "--batch 1" in labels
