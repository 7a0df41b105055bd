"""Scaled, accumulated, clipped, averaged, resumed: python examples/train_with_everything.py"""

import io

import torch
from schedsim.validation.measure import storage_bytes
from step_peaks import StepPeaks, show
from torch import nn

import schedsim

SCALE = 2.0**10


class Net(nn.Module):
    def __init__(self, width=32, depth=4):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norm, self.head = nn.BatchNorm1d(width), nn.Linear(width, 5)

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(self.norm(x))


def batch():
    return torch.randn(512, 32), torch.randint(0, 5, (512,))


def train(budget, num_steps=6, checkpoint=None):
    """Losses, the largest measured peak, and a checkpoint after three steps."""
    torch.manual_seed(0)
    model = Net()
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)  # a deep copy
    if budget:
        x, target = batch()
        # schedsim does not see the bytes of the average and of the targets: name them.
        held = storage_bytes([*average.parameters(), *average.buffers(), target])
        schedsim.rematerialize(model, x, budget, in_place=True, extra_bytes=held, effort=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=2)
    parts = {"model": model, "average": average, "optimizer": optimizer, "scaler": scaler}
    first = 0
    if checkpoint is not None:
        saved = torch.load(io.BytesIO(checkpoint))
        first = saved.pop("step")
        for name, state in saved.items():
            parts[name].load_state_dict(state)
    peaks, losses, skipped = StepPeaks(model, average, optimizer), [], []
    for step in range(first, num_steps):
        torch.manual_seed(step)
        peaks.begin()
        for _ in range(2):
            x, target = batch()
            loss = nn.functional.cross_entropy(model(x), target)
            if step == 1:
                loss = loss * float("inf")  # the scaler leaves this step out
            scaler.scale(loss / 2).backward()
            losses.append(loss.item())
            del x, target, loss
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped.append(scaler.get_scale() < before)
        optimizer.zero_grad()
        average.update_parameters(model)
        peaks.end()
        if step == 2:
            file = io.BytesIO()
            torch.save({"step": 3} | {n: part.state_dict() for n, part in parts.items()}, file)
            checkpoint = file.getvalue()
    assert first or skipped[:3] == [False, True, False]
    end = [*model.state_dict().values(), *average.state_dict().values()]
    return losses, peaks.most, checkpoint, end


def main():
    losses, most, _, end = train(None)
    budget = int(0.75 * most)
    same, within, checkpoint, ends = train(budget)
    show((losses[4:], most), (same[4:], within), budget)
    print(f"weights and averages equal: {all(map(torch.equal, end, ends))}")
    resumed, _, _, ends = train(budget, checkpoint=checkpoint)
    print(f"equal after resuming: {resumed == losses[6:] and all(map(torch.equal, end, ends))}")


if __name__ == "__main__":
    main()
