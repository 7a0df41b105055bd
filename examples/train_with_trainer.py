"""transformers' Trainer within a budget, saving on: python examples/train_with_trainer.py"""

import os
import sys
import tempfile

import torch
from schedsim.validation.measure import AllocatorMeter
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import schedsim

os.environ.setdefault("WANDB_DISABLED", "true")
SIZES = {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 64, "vocab_size": 256}


class Peak(TrainerCallback):
    """Says what was planned when training ends."""

    def on_train_end(self, args, state, control, model=None, **kwargs):
        if "--report" in sys.argv and model._compiled_call_impl is not None:
            print(schedsim.drop_in_report(model))


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
        given = {"input_ids": ids, "labels": ids}
        schedsim.rematerialize(model, given, budget, in_place=True, time_limit_s=2)
    settings = TrainingArguments(
        folder, max_steps=4, per_device_train_batch_size=4, save_steps=2, report_to=[], seed=0,
        logging_steps=1, disable_tqdm=True, use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    trainer = Trainer(model, settings, train_dataset=tokens(32), callbacks=[Peak()])
    trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-2" if resume else None)
    return [row["loss"] for row in trainer.state.log_history if "loss" in row], model


with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
    [plain] = AllocatorMeter().read(lambda: run(None, one))
    without = plain.peak_bytes
    losses, model = run(int(0.7 * without), two)
    assert isinstance(model, GPT2LMHeadModel)
    assert GPT2LMHeadModel.from_pretrained(f"{two}/checkpoint-4").num_parameters() > 0
    resumed, _ = run(int(0.7 * without), two, resume=True)
    print("losses", losses)
    print("equal to the plain Trainer's:", losses == plain.result[0])
    print("equal after resuming:", resumed[2:] == losses[2:])
