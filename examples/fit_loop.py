"""A loop that does not fit, and the line that makes it fit: python examples/fit_loop.py"""

import copy

import torch
from schedsim.validation.measure import AllocatorMeter, storage_bytes
from torch import nn

import schedsim


class Net(nn.Module):
    def __init__(self, width=64, depth=8):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                          nn.Linear(4 * width, width), nn.Dropout(0.1))
            for _ in range(depth)
        )  # fmt: skip
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def train(model, num_steps=4):
    """Anybody's loop: the loss is outside of the model, gradients accumulate, norms are clipped."""
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(num_steps):
        for _ in range(2):
            loss = nn.functional.cross_entropy(model(x), target)
            (loss / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def measured(model):
    """Peak bytes of the loop, all that is resident included, and its last loss."""
    [reading] = AllocatorMeter().read(lambda: train(model))
    return reading.peak_bytes + storage_bytes([*model.parameters(), x, target]), reading.result


torch.manual_seed(0)
x, target = torch.randn(512, 64), torch.randint(0, 10, (512,))
model = Net()
plain = copy.deepcopy(model)
without, last = measured(plain)
del plain  # or another model is there beside the budget, which a line says

start = copy.deepcopy(model.state_dict())
schedsim.rematerialize(model, x, without // 2, in_place=True)  # the line
train(model)  # the first steps look at the loss and the optimizer
model.load_state_dict(start)
within, same = measured(model)

print(f"without: {without / 2**20:.1f} MiB, last loss {last:.6f}")
print(f"within:  {within / 2**20:.1f} MiB, last loss {same:.6f}, equal: {last == same}")
assert within <= without // 2
