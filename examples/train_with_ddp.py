"""DistributedDataParallel within a budget: torchrun --nproc-per-node 2 examples/train_with_ddp.py

Twice: in place (by ops, the loss outside), and by blocks (the loss within).
"""

import os
import tempfile

import torch
import torch.distributed as dist
from schedsim.validation.measure import storage_bytes
from step_peaks import StepPeaks, show
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import schedsim


def batch(step):
    """Each rank has its own."""
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    x = torch.randn(512, 32, generator=generator)
    return x, torch.randint(0, 5, (512,), generator=generator)


def run(budget, level):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(5)]
    model = nn.Sequential(*layers, nn.Linear(32, 5))
    x, target = batch(0)
    # The buckets, in which gradients are averaged, are counted. By blocks the target is, too.
    held = storage_bytes(target)
    step = model
    if budget and level == "op":
        schedsim.rematerialize(model, x, budget, in_place=True, extra_bytes=held, effort=0.1)
    elif budget:
        step = schedsim.rematerialize(
            model, (x, target), budget, nn.functional.cross_entropy, level="block",
            optimizer="adamw",
        )  # fmt: skip
    parallel = DistributedDataParallel(step)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    peaks, losses = StepPeaks(model, optimizer), []
    del x, target
    for number in range(6):
        x, target = batch(number)
        peaks.begin(x, target)
        if step is model:
            loss = nn.functional.cross_entropy(parallel(x), target)
        else:
            loss = parallel(x, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        del x, target, loss
        peaks.end()
    return losses, peaks.most


def main():
    with tempfile.TemporaryDirectory() as folder:
        if "RANK" in os.environ:
            dist.init_process_group("gloo")
        else:  # started by hand: a group of one
            dist.init_process_group("gloo", f"file://{folder}/met", rank=0, world_size=1)
        try:
            for level in ("op", "block"):
                plain = run(None, level)
                budget = int(0.75 * plain[1])
                found = run(budget, level)
                if dist.get_rank() == 0:
                    print(f"by {level}s")
                    show(plain, found, budget)
        finally:
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
