"""accelerate in bf16 within a budget, accumulating: python examples/train_with_accelerate.py"""

import tempfile

import torch
from accelerate import Accelerator
from step_peaks import StepPeaks, show
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import schedsim


class Net(nn.Module):
    def __init__(self, width=32, depth=5):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)


def run(budget, folder, resume=False):
    torch.manual_seed(0)
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(), mixed_precision="bf16", gradient_accumulation_steps=2
    )
    data = TensorDataset(torch.randn(12 * 512, 32), torch.randint(0, 5, (12 * 512,)))
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, 512))
    if budget:
        x, target = next(iter(loader))
        # The loader fetches a batch ahead, which nobody sees from within the model.
        held = x.untyped_storage().nbytes() + 2 * target.untyped_storage().nbytes()
        with accelerator.autocast():
            schedsim.rematerialize(model, x, budget, in_place=True, extra_bytes=held, effort=0.1)
        del x, target
    if resume:
        accelerator.load_state(folder)
    peaks, losses = StepPeaks(model, optimizer.optimizer), []
    for number, (x, target) in enumerate(loader):
        if resume and number < 6:
            continue
        peaks.begin(x, target, x)
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), target)
            losses.append(loss.item())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        del loss
        peaks.end()
        if number == 5 and not resume:
            accelerator.save_state(folder)
    assert isinstance(accelerator.unwrap_model(model), Net)
    return losses, peaks.most


def main():
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        plain = run(None, one)
        budget = int(0.85 * plain[1])
        show(plain, run(budget, two), budget)
        resumed, _ = run(budget, two, resume=True)
        print(f"equal after resuming: {resumed == plain[0][6:]}")


if __name__ == "__main__":
    main()
