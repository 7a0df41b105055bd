"""Lightning within a budget, by a callback: python examples/train_with_lightning.py"""

import logging
import tempfile
import warnings

import pytorch_lightning as pl
import torch
from step_peaks import StepPeaks, show
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import schedsim


class Budget(pl.Callback):
    """Lets `module.net` train within a budget, from its first batch on."""

    def __init__(self, budget):
        self.budget = budget

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step == 0:
            x, target = batch
            held = target.untyped_storage().nbytes()  # beside what the net is given
            schedsim.rematerialize(
                module.net, x, self.budget, in_place=True, extra_bytes=held, effort=0.1
            )


class Peaks(pl.Callback):
    """Measures each step."""

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx == 0:
            self.peaks = StepPeaks(module, *trainer.optimizers)
        self.peaks.begin(batch)

    def on_train_batch_end(self, *given):
        self.peaks.end()


class Classifier(pl.LightningModule):
    """Anybody's: the loss is in `training_step`."""

    def __init__(self, width=32, depth=5):
        super().__init__()
        layers = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)]
        self.net = nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(width, 5))
        self.losses = []

    def training_step(self, batch, _):
        x, target = batch
        loss = nn.functional.cross_entropy(self.net(x), target)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def run(budget, folder):
    pl.seed_everything(0, verbose=False)
    data = TensorDataset(torch.randn(6 * 512, 32), torch.randint(0, 5, (6 * 512,)))
    module, seen = Classifier(), Peaks()
    trainer = pl.Trainer(
        default_root_dir=folder, max_epochs=1, gradient_clip_val=1.0,
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        callbacks=[Budget(budget), seen] if budget else [seen],
        logger=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(data, batch_size=512))
    return module.losses, seen.peaks.most, module, trainer.checkpoint_callback.best_model_path


def main():
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        losses, most, _, _ = run(None, one)
        budget = int(0.7 * most)
        same, within, module, saved = run(budget, two)
        show((losses, most), (same, within), budget)
        again = Classifier.load_from_checkpoint(saved)
        equal = all(map(torch.equal, again.parameters(), module.parameters()))
        print(f"saved by Lightning, and equal when loaded: {equal}")


if __name__ == "__main__":
    main()
