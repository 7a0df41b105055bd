"""LoRA by peft within a budget: python examples/train_lora.py"""

import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from step_peaks import StepPeaks, show
from transformers import GPT2Config, GPT2LMHeadModel

import schedsim

SIZES = {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 64, "vocab_size": 256}


def base():
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**SIZES, bos_token_id=0, eos_token_id=0))


def run(budget):
    config = LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.1, task_type="CAUSAL_LM")
    model = get_peft_model(base(), config)
    torch.manual_seed(1)
    batches = [torch.randint(0, 256, (4, 64)) for _ in range(6)]
    if budget:
        given = {"input_ids": batches[0], "labels": batches[0]}
        schedsim.rematerialize(model, given, budget, in_place=True, effort=0.1)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    peaks, losses = StepPeaks(model, optimizer), []
    for ids in batches:
        peaks.begin(ids)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        del loss
        peaks.end()
    return losses, peaks.most, model


def main():
    losses, most, plain = run(None)
    budget = int(0.8 * most)
    same, within, model = run(budget)
    show((losses, most), (same, within), budget)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)  # the adapter alone
        again = PeftModel.from_pretrained(base(), folder).state_dict()
    equal = all(torch.equal(value, again[name]) for name, value in plain.state_dict().items())
    print(f"adapter saved, and equal when loaded: {equal}")


if __name__ == "__main__":
    main()
