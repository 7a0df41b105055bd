"""transformers' Trainer within a budget, saving on: python examples/train_with_trainer.py"""

import os
import tempfile

import torch
from step_peaks import StepPeaks, show
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import schedsim

os.environ.setdefault("WANDB_DISABLED", "true")
SIZES = {"n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 64, "vocab_size": 256}
NUM_STEPS = 6


class Peaks(TrainerCallback):
    """Measures each step."""

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
        self.peaks = StepPeaks(model, optimizer)

    def on_step_begin(self, args, state, control, **kwargs):
        self.peaks.begin()

    def on_step_end(self, args, state, control, **kwargs):
        self.peaks.end()


def tokens(num, length=64):
    torch.manual_seed(1)
    rows = torch.randint(0, 256, (num, length))
    return [{"input_ids": row, "labels": row} for row in rows]


def run(budget, folder, resume=False):
    torch.manual_seed(0)
    special = {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(**SIZES, **special))  # its head is its embedding
    if budget:
        ids = torch.stack([row["input_ids"] for row in tokens(4)])
        given = {"input_ids": ids, "labels": ids.clone()}
        schedsim.rematerialize(model, given, budget, in_place=True, effort=0.1)
    settings = TrainingArguments(
        folder, max_steps=NUM_STEPS, per_device_train_batch_size=4, save_steps=3, report_to=[],
        logging_steps=1, disable_tqdm=True, use_cpu=not torch.cuda.is_available(), seed=0,
    )  # fmt: skip
    seen = Peaks()
    trainer = Trainer(model, settings, train_dataset=tokens(32), callbacks=[seen])
    trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-3" if resume else None)
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return losses, seen.peaks.most, model


def main():
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        losses, most, _ = run(None, one)
        budget = int(0.8 * most)
        same, within, model = run(budget, two)
        show((losses, most), (same, within), budget)
        print(schedsim.drop_in_report(model).splitlines()[2].strip())
        assert isinstance(model, GPT2LMHeadModel)
        assert GPT2LMHeadModel.from_pretrained(f"{two}/checkpoint-6").num_parameters() > 0
        resumed, _, _ = run(budget, two, resume=True)
        print(f"equal after resuming: {resumed[3:] == losses[3:]}")


if __name__ == "__main__":
    main()
