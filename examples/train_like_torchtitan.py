"""A loop as torchtitan has it, within a budget: python examples/train_like_torchtitan.py"""

import tempfile
import warnings

import torch
import torch.distributed.checkpoint as dcp
from schedsim.validation.measure import storage_bytes
from step_peaks import StepPeaks, show
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu

import schedsim

WIDTH, HEADS, VOCAB, BATCH, LENGTH = 32, 2, 128, 4, 64


class TransformerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.wqkv, self.wo = (nn.Linear(WIDTH, n * WIDTH, bias=False) for n in (3, 1))
        self.w1, self.w3 = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.w2 = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        heads = self.wqkv(self.attention_norm(x)).unflatten(-1, (3, HEADS, -1)).movedim(2, 0)
        q, k, v = heads.transpose(2, 3)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.wo(mixed)
        y = self.ffn_norm(x)
        return x + self.w2(silu(self.w1(y)) * self.w3(y))


class Transformer(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleDict({str(i): TransformerBlock() for i in range(depth)})
        self.norm, self.output = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def init_weights(self):
        for module in self.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            x = layer(x)
        return self.output(self.norm(x))


def microbatch(number):
    tokens = torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=torch.manual_seed(number))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def run(budget, folder, resume=False):
    with torch.device("meta"):
        model = Transformer()
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    model.init_weights()
    context = torch.autocast("cpu", torch.bfloat16)
    if budget:  # where torchtitan would call apply_ac(model, config)
        tokens, labels = microbatch(0)
        with context:
            schedsim.rematerialize(
                model, tokens, budget, in_place=True, extra_bytes=storage_bytes(labels), effort=0.1
            )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 3))
    first = 0
    if resume:
        first = load(folder, model, optimizer, scheduler)
    peaks, losses = StepPeaks(model, optimizer), []
    for step in range(first, 6):
        optimizer.zero_grad()
        peaks.begin()
        for k in range(2):
            tokens, labels = microbatch(2 * step + k)
            with context:
                pred = model(tokens)
                loss = cross_entropy(pred.flatten(0, 1).float(), labels.flatten()) / 2
                del pred
            loss.backward()
            losses.append(loss.item())
            del tokens, labels, loss
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        scheduler.step()
        peaks.end()
        if step == 2 and not resume:
            own, state = get_state_dict(model, optimizer)
            state = {"model": own, "optimizer": state, "scheduler": scheduler.state_dict()}
            dcp.save(state, checkpoint_id=folder, no_dist=True)
    model.eval()  # validation: no schedule, no budget
    with torch.no_grad(), context:
        tokens, labels = microbatch(99)
        losses.append(cross_entropy(model(tokens).flatten(0, 1).float(), labels.flatten()).item())
    return losses, peaks.most


def load(folder, model, optimizer, scheduler):
    own, found = get_state_dict(model, optimizer)
    state = {"model": own, "optimizer": found, "scheduler": scheduler.state_dict()}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    scheduler.load_state_dict(state["scheduler"])
    return scheduler.last_epoch


def main():
    warnings.filterwarnings("ignore", module="torch.distributed")
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        plain = run(None, one)
        budget = int(0.7 * plain[1])
        show(plain, run(budget, two), budget)
        resumed, _ = run(budget, two, resume=True)
        print(f"equal after resuming: {resumed == plain[0][6:]}")


if __name__ == "__main__":
    main()
