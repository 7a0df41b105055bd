"""Averages over replicas, and messages of tensor parallelism, whose buffers gloo drops late."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402
from rank_processes import run_ranks  # noqa: E402
from residual_layer import ResidualLayer  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from schedsim.validation.torch_private.prompt_messages import prompt_messages  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

WIDTH, LATE_S = 32, 0.01


@contextlib.contextmanager
def late_threads():
    """Let a thread hold the tensors of each all-reduce for a while, as gloo's may."""
    own = vars(dist.ProcessGroup)["allreduce"]
    called = []

    def late(group, tensors, *options):
        work = own.__get__(group)(tensors, *options)
        held = [tensor.detach() for tensor in tensors]
        called.append(len(held))
        threading.Thread(target=_hold, args=(held,), daemon=True).start()
        return work

    dist.ProcessGroup.allreduce = late
    try:
        yield called
    finally:
        dist.ProcessGroup.allreduce = own


def _hold(held):
    time.sleep(LATE_S)
    held.clear()


def _made(kind):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    model = nn.Sequential(*(ResidualLayer(WIDTH) for _ in range(4)))
    if kind == "replicated":
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
        for layer in [*model, model]:
            fully_shard(layer, mesh=mesh)
        return model
    mesh = init_device_mesh("cpu", (2,))
    for layer in model:
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def _peaks(rank, kind, budgets):
    data = torch.randn(256, WIDTH), torch.randn(256, WIDTH)
    with late_threads() as called:
        model = _made(kind)
        options = {"level": "block", "effort": 0.2, "check": "never"}
        module = schedsim.rematerialize(model, data, "100%", nn.functional.mse_loss, **options)
        gradients = []
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        resident = storage_bytes([list(model.parameters()), gradients, *data])
        found = []
        for budget in budgets:
            module.replan(budget)
            module.prepare(*data)
            called.clear()
            [reading] = AllocatorMeter().read(lambda: module(*data).backward())
            found.append((module.plan.peak_bytes, resident + reading.peak_bytes, len(called)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "budgets"),
    [
        ("split", ["90%", "85%", "80%", "75%"]),
        pytest.param("replicated", ["100%", "90%"], marks=pytest.mark.slow),
    ],
)
def test_peaks_do_not_depend_on_when_gloo_drops_its_buffers(kind, budgets):
    """Each peak is the predicted one; gradients are summed once a block and step.

    A block whose input is split over ranks looks it up as others do, where it is made again.
    """
    for found in run_ranks(_peaks, 2, kind, budgets):
        for predicted, measured, num_called in found:
            assert measured == predicted
            assert num_called >= 4


def _messages(rank):
    import torch.distributed._functional_collectives as functional

    group, found = dist.group.WORLD, []
    torch.manual_seed(rank)
    for dtype in (torch.float32, torch.bfloat16):
        given = torch.randn(6, 5).to(dtype)
        sends = [
            lambda given=given: functional.all_reduce(given, "sum", group),
            lambda given=given: functional.all_gather_tensor(given, 0, group),
            lambda given=given: functional.all_gather_tensor(given, 1, group),
            lambda given=given: functional.reduce_scatter_tensor(given, "sum", 0, group),
        ]
        for send in sends:
            own = functional.wait_tensor(send())
            with prompt_messages(), late_threads() as called:
                mine = functional.wait_tensor(send())
            found.append((torch.equal(own, mine), len(called)))
        with late_threads() as called:
            functional.wait_tensor(sends[0]())
        # Torch's own kernel waits without Python's lock, as one that calls it would not.
        is_there = torch._C._dispatch_has_kernel_for_dispatch_key
        ours = is_there("_c10d_functional::all_reduce", "CPU")
        found.append((not called and not ours, 0))
    return found


def test_messages_are_those_of_torch_to_the_bit():
    """Sums and gathers, in both precisions; outside of planned steps they are torch's own."""
    for found in run_ranks(_messages, 2):
        assert [same for same, _ in found] == [True] * 10
        assert [number for _, number in found] == [1, 0, 0, 1, 0] * 2
