"""Rematerialized modules with the rest of a training stack."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import schedsim  # noqa: E402

LOSS = nn.functional.mse_loss
LEVELS = ("op", "block")


def a_model(num=4):
    """A line of small blocks."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(num)))


def some_data(num=256):
    """Inputs and targets."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(num, 16, generator=generator) for _ in range(2)]


def made(model, inputs, level, **options):
    """A module at a tight budget."""
    options = {"budget": "85%", "time_limit_s": 0.5, **options}
    return schedsim.rematerialize(model, tuple(inputs), loss=LOSS, level=level, **options)


@pytest.mark.parametrize("level", LEVELS)
def test_autocast_and_grad_scaler(level):
    """Each is the plain step to the bit; the plan is made in the same autocast."""
    model, (x, target) = a_model(), some_data()
    found = []
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with torch.autocast("cpu", torch.bfloat16):
        module = made(model, (x, target), level)
    for step in (lambda: LOSS(model(x), target), lambda: module(x, target)):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = step()
        scaler.scale(loss).backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters())])
    assert all(map(torch.equal, *found))
    assert len(module.plans) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_a_whole_loop_is_the_plain_one_to_the_bit(level):
    """Data loader, two accumulated steps, clipping, checkpoints both ways."""
    data = TensorDataset(*some_data(512))
    weights = []
    for scheduled in (False, True):
        model = a_model()
        optimizer = torch.optim.AdamW(model.parameters())
        first = next(iter(DataLoader(data, batch_size=64)))
        run = lambda x, target, model=model: LOSS(model(x), target)  # noqa: E731
        if scheduled:
            run = made(model, first, level, optimizer=optimizer, keep_gradients=True)
        for number, (x, target) in enumerate(DataLoader(data, batch_size=64)):
            (run(x, target) / 2).backward()
            if number % 2:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()
        weights.append(list(model.state_dict().values()))
    assert all(map(torch.equal, *weights))


@pytest.mark.parametrize("level", LEVELS)
def test_accumulated_gradients_are_in_the_plan(level):
    """The second backward meets gradients that are there already, and stays within the plan."""
    model, inputs = a_model(), some_data()
    module = made(model, inputs, level, keep_gradients=True)
    watcher = schedsim.watch(module)
    for _ in range(2):
        with watcher:
            module(*inputs).backward()
    assert max(watcher.measured_bytes) <= module.plan.peak_bytes


def _ddp(rank, level, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    x, target = some_data()
    half = slice(128 * rank, 128 * (rank + 1))
    model, plain = a_model(), a_model()
    module = made(model, (x[half], target[half]), level)
    parallel = nn.parallel.DistributedDataParallel(module)
    for _ in range(2):
        model.zero_grad()
        parallel(x[half], target[half]).backward()
    LOSS(plain(x), target).backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    dist.destroy_process_group()


def test_distributed_data_parallel_averages_the_gradients(tmp_path):
    for level in LEVELS:
        mp.spawn(_ddp, (level, tmp_path / level), nprocs=2)
