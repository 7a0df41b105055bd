"""What a scheduled step costs the host within the budget of the plain step: nothing is repeated.

    python benchmarks/host_time.py -o host-time.jsonl
    python -m schedsim.validation.dry_cuda --device h100-80gb --memory 400GB -- \\
        python benchmarks/host_time.py --device cuda -o host-time.jsonl

On a CUDA device without a GPU kernels take no time, so that a step's time is the host's. On a CPU
the tensors are tiny. Plain and scheduled steps take turns; times are processor time of the process,
and a row has the medians, and the median of the ratios of pairs.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import schedsim

Step = Callable[[], None]
DOORS = ("in place", "backend")


def gpt2(num_layers: int) -> nn.Module:
    """A GPT-2 of tiny tensors, with dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 32, "n_head": 2, "n_layer": num_layers, "vocab_size": 64, "n_positions": 16}
    return GPT2LMHeadModel(GPT2Config(use_cache=False, **sizes))


def llama(num_layers: int) -> nn.Module:
    """A Llama of tiny tensors."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=64,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


class Residual(nn.Module):
    """A block of a ResNet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.norm_one, self.norm_two = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two convolutions beside the input."""
        return torch.relu(x + self.norm_two(self.two(torch.relu(self.norm_one(self.one(x))))))


def resnet(num_layers: int) -> nn.Module:
    """Blocks of a ResNet."""
    return nn.Sequential(*(Residual(8) for _ in range(num_layers)))


MODELS = {"gpt2": gpt2, "llama": llama, "resnet": resnet}


def step_of(name: str, called: Any, model: nn.Module, device: str) -> Step:
    """A training step without an optimizer: the model's forward, a loss, its backward."""
    if name == "resnet":
        image = torch.randn(2, 8, 8, 8, device=device)

        def step() -> None:
            model.zero_grad(set_to_none=True)
            called(image).square().mean().backward()

    else:
        tokens = torch.zeros(2, 16, dtype=torch.long, device=device)

        def step() -> None:
            model.zero_grad(set_to_none=True)
            called(tokens).logits.square().mean().backward()

    return step


def scheduled(name: str, door: str, model: nn.Module, device: str) -> Step:
    """The step of `model` by a schedule that keeps everything."""
    if door == "backend":
        called: Any = torch.compile(model, backend="schedsim", options={"budget": "200%"})
        return step_of(name, called, model, device)
    if name == "resnet":
        inputs = torch.randn(2, 8, 8, 8, device=device)
    else:
        inputs = torch.zeros(2, 16, dtype=torch.long, device=device)
    schedsim.rematerialize(model, inputs, "200%", in_place=True)
    return step_of(name, model, model, device)


def seconds(step: Step) -> float:
    """Processor time of a step, of all threads."""
    begin = time.process_time()
    step()
    return time.process_time() - begin


def row(name: str, door: str, device: str, num_layers: int, num_pairs: int) -> dict[str, Any]:
    """Medians of steps that take turns."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = MODELS[name](num_layers).to(device)
    plain = copy.deepcopy(model)
    steps = step_of(name, plain, plain, device), scheduled(name, door, model, device)
    for step in steps:
        for _ in range(8):
            step()
    pairs = [tuple(map(seconds, steps)) for _ in range(num_pairs)]
    one, other = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {
        "model": name,
        "layers": num_layers,
        "door": door,
        "device": device,
        "plain_ms": round(1e3 * one, 3),
        "scheduled_ms": round(1e3 * other, 3),
        "ratio": round(statistics.median(its / mine for mine, its in pairs), 3),
        "torch": torch.__version__,
    }


def main() -> None:
    """Measure each model by both doors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--doors", nargs="+", default=list(DOORS), choices=DOORS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    with given.o.open("a") as file:
        for name in given.models:
            for door in given.doors:
                found = row(name, door, given.device, given.layers, given.pairs)
                print(found, flush=True)
                file.write(json.dumps(found) + "\n")
                file.flush()


if __name__ == "__main__":
    main()
