"""torchtune's own LoRA and QLoRA steps on the dry CUDA device, at the settings of its README.

    python -m schedsim.validation.dry_cuda --device a100-80gb -- \\
        python benchmarks/torchtune_adapters.py LoRA

It needs torch 2.6.0, torchao 0.8.0 and torchtune 0.4.0, of the time of the published figures, 8.5
and 4.6 GiB active (README of torchtune, commit 1814feb17, "Optimization flags"). Llama 3.2 3B with
adapters of rank 64, two packed sequences of 4,096 tokens, layers and loss compiled, the loss in
eight chunks, layers checkpointed and their inputs offloaded. One line a step: the peak of active
bytes before the optimizer's first step, which makes its state, and after it.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn
from torchtune import training
from torchtune.models import llama3_2
from torchtune.modules import TransformerSelfAttentionLayer
from torchtune.modules.loss import CEWithChunkedOutputLoss
from torchtune.modules.peft import get_adapter_params, set_trainable_params

BATCH, SEQ, RANK, NUM_STEPS = 2, 4096, 64, 3
BUILDERS = {"LoRA": llama3_2.lora_llama3_2_3b, "QLoRA": llama3_2.qlora_llama3_2_3b}


def built(name: str) -> nn.Module:
    """The model as the recipe sets it up, with weights of no meaning."""
    with training.set_default_dtype(torch.bfloat16), torch.device("cuda"):
        model: nn.Module = BUILDERS[name](
            lora_attn_modules=["q_proj", "v_proj", "output_proj"],
            apply_lora_to_mlp=True,
            lora_rank=RANK,
            lora_alpha=2 * RANK,
        )
    set_trainable_params(model, get_adapter_params(model))
    training.compile_model(model, verbose=False)
    training.set_activation_checkpointing(model, {TransformerSelfAttentionLayer})
    return model


def train(name: str) -> None:
    """Print the peak of each step."""
    model = built(name)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4, fused=True)
    loss_of = CEWithChunkedOutputLoss()
    training.compile_loss(loss_of, verbose=False)
    model.set_num_output_chunks(loss_of.num_output_chunks)
    offloading = training.get_act_offloading_ctx_manager(model, True)
    for step in range(NUM_STEPS):
        torch.cuda.reset_peak_memory_stats()
        _loss(model, loss_of, offloading).backward()
        peak = torch.cuda.memory_stats()["active_bytes.all.peak"]
        print(f"{name}, step {step + 1}: {peak / 2**30:.3f} GiB active", flush=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _loss(model: nn.Module, loss_of: nn.Module, offloading: object) -> Tensor:
    tokens = torch.zeros(BATCH, SEQ, dtype=torch.long, device="cuda")
    places = torch.arange(SEQ, device="cuda").repeat(BATCH, 1)
    with offloading:  # type: ignore[attr-defined]
        logits = model(tokens=tokens, input_pos=places)
    loss: Tensor = loss_of(logits, tokens.clone())
    return loss


if __name__ == "__main__":
    if sys.argv[1:] not in [[name] for name in BUILDERS]:
        sys.exit(f"give one of {' and '.join(BUILDERS)}")
    train(sys.argv[1])
