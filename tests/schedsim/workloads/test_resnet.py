"""ResNets: counted from the architecture, and a chain that covers its ops."""

from __future__ import annotations

import pytest

from schedsim import Schedule, simulate
from schedsim.workloads import ResNetConfig, WorkloadOptions, build_workload, resnet_model


@pytest.mark.parametrize(
    ("depth", "count"), [(50, 25_557_032), (101, 44_549_160), (152, 60_192_808)]
)
def test_parameters(depth, count):
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


def test_bytes_of_a_block():
    """What the first residual block keeps at batch 1, element by element.

    A map of 56 x 56 has 3136 places. Kept: conv1, bn1, conv2 and bn2 outputs of 64 channels, conv3
    and shortcut convolution outputs and the block's output of 256; in fp32: (4 x 64 + 3 x 256) x
    3136 x 4. The four norms keep a mean and a deviation for 64 + 64 + 256 + 256 channels.
    """
    chain = build_workload(WorkloadOptions(preset="resnet-50", batch=1)).workload
    assert chain.stages[1].saved_bytes == 1024 * 3136 * 4 + 640 * 8


def test_the_image_gets_no_gradient():
    """The first convolution computes the gradient of its weights alone: its forward's flops."""
    stem = resnet_model(ResNetConfig(depth=50)).stages[0]
    assert stem.backward[-1].name == "conv1'"
    assert stem.backward[-1].writes == {}
    assert stem.backward[-1].flops == stem.forward[0].flops


@pytest.mark.parametrize("depth", [50, 101, 152])
def test_chain_covers_its_ops(depth):
    """A stage per residual block with stem and head, at the peak as large as its ops or 1 % more.

    Blocks: 3 + 4 + 6 + 3, 3 + 4 + 23 + 3, 3 + 8 + 36 + 3.
    """
    preset = f"resnet-{depth}"
    chain = build_workload(WorkloadOptions(preset=preset)).workload
    graph = build_workload(WorkloadOptions(preset=preset, granularity="op")).workload
    assert chain.num_stages == {50: 16, 101: 33, 152: 50}[depth] + 2
    of_chain = simulate(chain, Schedule.store_all(chain))
    of_graph = simulate(graph, Schedule.store_all(graph))
    assert of_graph.peak_bytes <= of_chain.peak_bytes <= 1.01 * of_graph.peak_bytes
    assert of_chain.makespan_s == pytest.approx(of_graph.makespan_s, rel=1e-12)
