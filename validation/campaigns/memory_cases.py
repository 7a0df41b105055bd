"""The models of the memory campaign, and how each is captured."""

from __future__ import annotations

from dataclasses import dataclass

EXPANDABLE = "expandable_segments:True"


@dataclass(frozen=True)
class MemoryCase:
    """A model of the campaign: its name in the tables, the target, and how it is captured.

    Attributes
    ----------
    conf
        The allocator's settings, as ``PYTORCH_ALLOC_CONF`` has them.
    keeps_gradients
        Whether the loop keeps gradients between steps: ``zero_grad(set_to_none=False)``.
    """

    name: str
    target: str
    level: str = "block"
    conf: str = ""
    keeps_gradients: bool = False


CASES = (
    MemoryCase("ResNet-152, 224 x 224, batch 36", "model:resnet152,batch=36"),
    MemoryCase("ViT-B/16, batch 64", "model:vit-b16,batch=64"),
    MemoryCase("GPT-2 774M, 1024 tokens, batch 4", "model:gpt2-large,batch=4"),
    MemoryCase("GPT-2 XL, 1024 tokens, batch 8", "model:gpt2-xl,batch=8"),
    MemoryCase(
        "Llama 1B, bf16, 8192 tokens, batch 2", "model:llama3.2-1b,seq=8192,batch=2,dtype=bf16"
    ),
    MemoryCase(
        "Llama 3 8B, bf16, 8192 tokens, batch 1", "model:llama3-8b,seq=8192,batch=1,dtype=bf16"
    ),
    MemoryCase(
        "LLaMA-7B, bf16, 2048 tokens, batch 4", "model:llama2-7b,seq=2048,batch=4,dtype=bf16"
    ),
    MemoryCase(
        "Llama 3 8B, LoRA of rank 16, bf16, 8192 tokens, batch 1",
        "model:llama3-8b,seq=8192,batch=1,dtype=bf16,lora=16",
    ),
    MemoryCase(
        "LLaMA-7B, frozen but LoRA of rank 8, bf16, 2048 tokens, batch 4",
        "model:llama2-7b,seq=2048,batch=4,dtype=bf16,lora=8",
    ),
    MemoryCase(
        "Mixtral 8x7B, 4 of 32 layers, bf16, 4096 tokens, batch 2",
        "model:mixtral-8x7b,layers=4,seq=4096,batch=2,dtype=bf16",
    ),
    MemoryCase("U-Net, 512 x 512, batch 16", "model:unet,image=512,batch=16"),
    MemoryCase("LSTM, 512 steps, batch 256", "model:lstm,seq=512,batch=256"),
    MemoryCase("LSTM, op by op", "model:lstm,seq=512,batch=256", "op"),
    MemoryCase("ResNet-152, op by op", "model:resnet152,batch=36", "op"),
    MemoryCase("ViT-B/16, op by op", "model:vit-b16,batch=64", "op"),
    MemoryCase("GPT-2 774M, op by op", "model:gpt2-large,batch=4", "op"),
    MemoryCase("U-Net, op by op", "model:unet,image=512,batch=16", "op"),
    MemoryCase("LLaMA-7B, bf16, op by op", "model:llama2-7b,seq=2048,batch=4,dtype=bf16", "op"),
    MemoryCase("GPT-2 XL, op by op", "model:gpt2-xl,batch=8", "op"),
    MemoryCase(
        "Llama 1B, bf16, 2048 tokens, batch 8, op by op",
        "model:llama3.2-1b,seq=2048,batch=8,dtype=bf16",
        "op",
    ),
    MemoryCase(
        "Llama 3 8B, bf16, 8192 tokens, op by op",
        "model:llama3-8b,seq=8192,batch=1,dtype=bf16",
        "op",
    ),
    MemoryCase(
        "Llama 3 8B, LoRA of rank 16, op by op",
        "model:llama3-8b,seq=8192,batch=1,dtype=bf16,lora=16",
        "op",
    ),
    MemoryCase(
        "Mixtral 8x7B, 4 of 32 layers, op by op",
        "model:mixtral-8x7b,layers=4,seq=4096,batch=2,dtype=bf16",
        "op",
    ),
    MemoryCase("ResNet-152, expandable segments", "model:resnet152,batch=36", conf=EXPANDABLE),
    MemoryCase("ViT-B/16, expandable segments", "model:vit-b16,batch=64", conf=EXPANDABLE),
    MemoryCase("GPT-2 774M, expandable segments", "model:gpt2-large,batch=4", conf=EXPANDABLE),
    MemoryCase(
        "Llama 1B, bf16, 8192 tokens, expandable segments",
        "model:llama3.2-1b,seq=8192,batch=2,dtype=bf16",
        conf=EXPANDABLE,
    ),
    MemoryCase(
        "Llama 3 8B, bf16, 8192 tokens, expandable segments",
        "model:llama3-8b,seq=8192,batch=1,dtype=bf16",
        conf=EXPANDABLE,
    ),
    MemoryCase(
        "Mixtral 8x7B, 4 of 32 layers, expandable segments",
        "model:mixtral-8x7b,layers=4,seq=4096,batch=2,dtype=bf16",
        conf=EXPANDABLE,
    ),
    MemoryCase("U-Net, expandable segments", "model:unet,image=512,batch=16", conf=EXPANDABLE),
    MemoryCase(
        "ViT-B/16, op by op, expandable segments", "model:vit-b16,batch=64", "op", conf=EXPANDABLE
    ),
    MemoryCase(
        "U-Net, op by op, expandable segments",
        "model:unet,image=512,batch=16",
        "op",
        conf=EXPANDABLE,
    ),
    MemoryCase("ResNet-152, gradients kept", "model:resnet152,batch=36", keeps_gradients=True),
    MemoryCase("ViT-B/16, gradients kept", "model:vit-b16,batch=64", keeps_gradients=True),
    MemoryCase("GPT-2 XL, gradients kept", "model:gpt2-xl,batch=8", keeps_gradients=True),
    MemoryCase(
        "Llama 1B, bf16, 8192 tokens, gradients kept",
        "model:llama3.2-1b,seq=8192,batch=2,dtype=bf16",
        keeps_gradients=True,
    ),
    MemoryCase(
        "ViT-B/16, gradients kept, expandable segments",
        "model:vit-b16,batch=64",
        conf=EXPANDABLE,
        keeps_gradients=True,
    ),
    MemoryCase(
        "ViT-B/16, op by op, gradients kept", "model:vit-b16,batch=64", "op", keeps_gradients=True
    ),
)
