"""Steps of GPT-2 and a small Llama on a GPU: plain, in place, sharded, compiled; bytes and times.

    python benchmarks/gpu_steps.py -o gpu-steps.jsonl
    python -m schedsim.validation.dry_cuda --device h100-80gb --memory 400GB -- \\
        python benchmarks/gpu_steps.py -o dry-steps.jsonl --ways in_place sharded \\
        --shares 0.9 0.75 0.6

Budgets are shares of what the plain step, or torch.compile's, reserves beside what is resident.
Sharded steps are those of one rank of a fake group of eight, by FSDP2 in bfloat16 (torch's
fake process group: nothing is sent). Peaks are PyTorch's own counters; a time is the median of
eight steps between CUDA events, which a dry device does not have. Needs a CUDA device and
transformers.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import schedsim

BATCH, LENGTH, STEPS, NUM_RANKS = 8, 1024, 8, 8
FIRST = 60  # steps in which plans are made, and make room for the allocator
Step = Callable[[], None]


def gpt2() -> Any:
    """GPT-2 of 124 million parameters, in float32, with dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(use_cache=False))


def llama() -> Any:
    """Eight layers of a Llama, 2048 wide, in bfloat16."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
        intermediate_size=5632,
        use_cache=False,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


def milliseconds(step: Step) -> float:
    """The median time of a step."""
    times = []
    for number in range(2 + STEPS):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        step()
        last.record()
        torch.cuda.synchronize()
        if number > 1:
            times.append(first.elapsed_time(last))
    return statistics.median(times)


def measured(step: Step) -> dict[str, Any]:
    """Peaks of a step, requested and reserved, and its time."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    found = torch.cuda.memory_stats()
    return {
        "requested_bytes": found["requested_bytes.all.peak"],
        "reserved_bytes": found["reserved_bytes.all.peak"],
        "milliseconds": round(milliseconds(step), 2),
    }


def sharded_layers(model: Any) -> Any:
    """`model`, of which each rank of a fake group of eight has a share, gathered layer by layer."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not dist.is_initialized():
        dist.init_process_group("fake", rank=0, world_size=NUM_RANKS, store=FakeStore())
    mesh = init_device_mesh("cuda", (NUM_RANKS,))
    arithmetic = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in (*model.model.layers, model):
        fully_shard(layer, mesh=mesh, mp_policy=arithmetic)
    return model


def sharded(make: Callable[[], Any], shares: list[float]) -> list[dict[str, Any]]:
    """The same loop on a rank of several."""
    return in_place(make, shares, lambda model: sharded_layers(model.float()), "sharded")


def in_place(
    make: Callable[[], Any],
    shares: list[float],
    wrapped: Callable[[Any], Any] = lambda model: model,
    way: str = "in place",
) -> list[dict[str, Any]]:
    """A loop with AdamW; a share of 0 is a budget that recomputes nothing."""
    rows = []
    for share in shares:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = wrapped(make().cuda().train())
        ids = torch.randint(0, model.config.vocab_size, (BATCH, LENGTH), device="cuda")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

        def step(model: Any = model, ids: Any = ids, optimizer: Any = optimizer) -> None:
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        step()
        plain = measured(step)
        resident = torch.cuda.memory_allocated()
        room = plain["reserved_bytes"] - resident
        budget: Any = int(resident + share * room) if share else "200%"
        inputs = {"input_ids": ids, "labels": ids}
        row = {"way": way, "model": make.__name__, "share": share, "plain": plain}
        try:
            schedsim.rematerialize(model, inputs, budget, in_place=True)
            for _ in range(FIRST):
                step()
            row |= {"budget": budget, **measured(step), "says": schedsim.drop_in_report(model)}
        except schedsim.InfeasibleBudgetError as error:
            row |= {"budget": budget, "says": str(error)}
        rows.append(row)
    return rows


def compiled(make: Callable[[], Any], shares: list[float]) -> list[dict[str, Any]]:
    """Forward and backward of a whole step, with the loss, beside torch.compile."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = make().cuda().train()
    ids = torch.randint(0, model.config.vocab_size, (BATCH, LENGTH), device="cuda")

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor) -> Any:
            return self.model(input_ids=ids, labels=ids).loss

    def step_of(function: Callable[..., Any], **given: Any) -> Step:
        def step() -> None:
            (function(**given) if given else function(ids)).backward()
            model.zero_grad()

        step()
        return step

    whole = WithLoss()
    found = {"eager": whole, "torch.compile": torch.compile(whole)}
    rows = [
        {"way": name, "model": make.__name__, **measured(step_of(f))} for name, f in found.items()
    ]
    resident, most = torch.cuda.memory_allocated(), rows[-1]["reserved_bytes"]
    for share in shares:
        torch._dynamo.reset()
        budget = int(resident + share * (most - resident))
        inputs = {"input_ids": ids, "labels": ids}
        row = {"way": "compiled", "model": make.__name__, "share": share, "budget": budget}
        try:
            module = schedsim.rematerialize(
                model, inputs, budget, lambda output: output.loss, compile=True
            )
            row |= {**measured(step_of(module, **inputs)), "says": module.report()}
        except schedsim.InfeasibleBudgetError as error:
            row |= {"says": str(error)}
        rows.append(row)
    return rows


MODELS: dict[str, Callable[[], Any]] = {"gpt2": gpt2, "llama": llama}
WAYS: dict[str, Callable[[Callable[[], Any], list[float]], list[dict[str, Any]]]] = {
    "compiled": compiled,
    "in_place": in_place,
    "sharded": sharded,
}
SHARES = {
    ("compiled", "gpt2"): [1.0, 0.6],
    ("in_place", "gpt2"): [0, 0.85],
    ("in_place", "llama"): [0, 0.7],
    ("sharded", "llama"): [0.75],
}


def main() -> None:
    """Measure, and write a line for each setting."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--shares", nargs="+", type=float, help="0: nothing is recomputed")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no CUDA device here; docs/dry-cuda.md says how to have a dry one")
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    with given.output.open("w") as file:
        for way, model in ((way, model) for way in given.ways for model in given.models):
            if (way, model) not in SHARES:
                continue
            for row in WAYS[way](MODELS[model], given.shares or SHARES[way, model]):
                line = json.dumps(row | about)
                print(line[:200], flush=True)
                file.write(line + "\n")


if __name__ == "__main__":
    main()
