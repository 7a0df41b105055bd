"""Train a GPT-2 in half the memory: python examples/train_gpt2.py"""

import torch
from schedsim.validation.measure import AllocatorMeter, storage_bytes
from schedsim.validation.models import build_model

import schedsim

SIZES = {"layers": 6, "hidden": 128, "heads": 4, "vocab": 500, "batch": 4, "seq": 128}


def train(budget=None):
    model, (ids,), loss = build_model("gpt2", **SIZES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = lambda ids: loss(model(ids))  # noqa: E731
    if budget:
        step = schedsim.rematerialize(model, ids, budget, loss, optimizer=optimizer)

    def loop():
        torch.manual_seed(0)
        for _ in range(5):
            value = step(ids)
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
        return value.item()

    [reading] = AllocatorMeter().read(loop)
    resident = storage_bytes([*model.parameters(), ids, loss.target])
    return reading.peak_bytes + resident, reading.result


without, last = train()
within, same = train(budget=without // 2)
print(f"without: {without / 2**20:.1f} MiB, last loss {last:.6f}")
print(f"within:  {within / 2**20:.1f} MiB, last loss {same:.6f}, equal: {last == same}")
