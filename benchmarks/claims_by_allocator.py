"""The pairs of GB that are repeated without a source, by CUDA's allocator, on a dry device.

    python -m schedsim.validation.dry_cuda --device a100-80gb -- \\
        python benchmarks/claims_by_allocator.py results.jsonl

Each row is a loop of three steps, as a user writes it, of a model and an optimizer as in
`papers/repeated-claims`, with everything kept and with a checkpoint at every block. The bytes are
the peak over all steps. Kernels are not run.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from schedsim.validation.models import build_model
from schedsim.validation.models.gpt2 import GPT2Block
from schedsim.validation.models.llama import LlamaBlock
from schedsim.validation.models.resnet import Bottleneck
from schedsim.validation.models.vit import ViTBlock
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

NUM_STEPS = 3  # the first lacks the optimizer's state
BLOCKS = (GPT2Block, LlamaBlock, Bottleneck, ViTBlock)


@dataclass(frozen=True)
class Loop:
    """A pair of the page, in GB: as claimed, and the training loop to measure.

    Attributes
    ----------
    optimizer
        Makes the optimizer from the parameters; ``None`` for weights that are frozen.
    mixed
        Whether the step runs under fp16 autocast, with fp32 weights, gradients and moments: 16
        bytes a parameter, and the casted weights while they are in use.
    """

    name: str
    setting: str
    claimed_gb: tuple[float, float]
    model: str
    options: dict[str, Any]
    optimizer: Callable[[Any], torch.optim.Optimizer] | None
    mixed: bool = False
    eager_attention: bool = False


LOOPS = (
    Loop(
        "ResNet-152",
        "fp32, 224 x 224, batch 36, momentum SGD",
        (7.2, 3.1),
        "resnet152",
        {"batch": 36},
        partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    ),
    Loop(
        "ViT-B/16", "fp32, batch 64, Adam", (12.5, 5.8), "vit-b16", {"batch": 64}, torch.optim.Adam
    ),
    Loop(
        "GPT-2 774M",
        "fp16 autocast, Adam, batch 4, 1024 tokens, attention in plain ops",
        (38, 16),
        "gpt2-large",
        {"batch": 4},
        torch.optim.Adam,
        mixed=True,
        eager_attention=True,
    ),
    Loop(
        "LLaMA-7B",
        "frozen bf16 weights, batch 4, 2048 tokens, fused attention",
        (56, 24),
        "llama2-7b",
        {"batch": 4, "seq": 2048, "dtype": "bf16"},
        None,
    ),
)


class Checkpointed(nn.Module):
    """A block whose inner tensors are recomputed in the backward."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *values: Any) -> Any:
        """The block's output."""
        return checkpoint(self.block, *values, use_reentrant=False)


def checkpoint_blocks(model: nn.Module) -> int:
    """Put `Checkpointed` around every block of `model`; their number."""
    count = 0
    for name, child in list(model.named_children()):
        if isinstance(child, BLOCKS):
            setattr(model, name, Checkpointed(child))
            count += 1
        else:
            count += checkpoint_blocks(child)
    return count


def contexts(loop: Loop) -> Iterator[AbstractContextManager[Any]]:
    """The contexts in which the forward pass runs."""
    yield torch.autocast("cuda", torch.float16) if loop.mixed else nullcontext()
    yield sdpa_kernel(SDPBackend.MATH) if loop.eager_attention else nullcontext()


def measure(loop: Loop, *, every_block: bool, device: str = "cuda") -> dict[str, Any]:
    """The peaks of the loop in bytes, allocated and reserved, or the words of the allocator."""
    built = build_model(loop.model, device=device, **loop.options)
    model = built.model.train()
    blocks = checkpoint_blocks(model) if every_block else 0
    assert blocks or not every_block
    optimizer = None
    if loop.optimizer is None:
        model.requires_grad_(False)
        # As adapters do: what comes after the embedding is differentiated with respect to inputs.
        next(iter(model.children())).register_forward_hook(lambda _, __, out: out.requires_grad_())
    else:
        optimizer = loop.optimizer(model.parameters())
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    row = {"model": loop.name, "setting": loop.setting, "every_block": every_block}
    try:
        for _ in range(NUM_STEPS):
            autocast, attention = contexts(loop)
            with attention:  # backward, too, where blocks run again
                with autocast:
                    out = model(*built.inputs)
                    loss = out if built.loss is None else built.loss(out)
                    del out
                loss.backward()
                del loss
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
    except torch.OutOfMemoryError as error:
        return {**row, "out_of_memory": " ".join(str(error).split())[:160]}
    return {
        **row,
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def main() -> None:
    """Measure every pair, and write a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    chosen = parser.parse_args()
    with chosen.output.open("w") as lines:
        for loop in LOOPS:
            for every_block in (False, True):
                row = measure(loop, every_block=every_block)
                gc.collect()
                torch.cuda.empty_cache()
                line = json.dumps(row)
                lines.write(line + "\n")
                lines.flush()
                print(line, flush=True)


if __name__ == "__main__":
    main()
