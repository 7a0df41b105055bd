"""Train a GPT-2 in half the memory: `python examples/train_gpt2.py`."""

import torch
from schedsim.validation.measure import AllocatorMeter, storage_bytes
from schedsim.validation.models import build_model

import schedsim


def train(budget=None):
    model, (ids,), loss = build_model(
        "gpt2", layers=6, hidden=128, heads=4, vocab=500, batch=4, seq=128
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(ids):
        return loss(model(ids))

    if budget:
        step = schedsim.rematerialize(model, ids, budget, loss, optimizer=optimizer)

    def loop():
        torch.manual_seed(0)
        losses = []
        for _ in range(5):
            value = step(ids)
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(value.item())
        return losses

    [reading] = AllocatorMeter().read(loop)
    return reading.peak_bytes + storage_bytes(
        [*model.parameters(), ids, loss.target]
    ), reading.result


without, losses = train()
within, same = train(budget=without // 2)
print(f"without: {without / 2**20:.1f} MiB, last loss {losses[-1]:.6f}")
print(f"within:  {within / 2**20:.1f} MiB, last loss {same[-1]:.6f}, equal: {losses == same}")
