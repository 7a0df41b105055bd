"""One pipeline rank of Llama 3 under FSDP2 and tensor parallelism, run by PyTorch's own schedules.

    python -m schedsim.validation.dry_cuda --device h100-80gb --memory 4000GB -- \\
        python benchmarks/sharded_pipeline.py --model 405b --fsdp 8 --tensor 8 --pipeline 8 --rank 0

The rank is one of a fake process group, on the dry CUDA device, and trains for three steps; one
line of JSON says what PyTorch's allocator reserved. Settings are torchtitan's of December 2024:
as many micro-batches as pipeline ranks, layers split as its ``generate_split_points`` splits them,
parameters gathered once and kept to the last micro-batch, fp32 reduction, AdamW.
"""

from __future__ import annotations

import argparse
import inspect
import json
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from decoders import SIZES, Decoder
from sharded_llama import NUM_STEPS, in_float8, recomputing, split
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore

from schedsim.clusters import Training


class PartOfDecoder(nn.Module):
    """The layers of one stage; the first embeds, the last makes logits."""

    def __init__(self, whole: Decoder, number: int, starts: list[int]) -> None:
        super().__init__()
        self.embedding = whole.embedding if number == 0 else None
        self.layers = whole.layers[starts[number] : starts[number + 1]]
        last = number == len(starts) - 2
        self.norm, self.output = (whole.norm, whole.output) if last else (None, None)
        self.register_buffer("turn", whole.turn, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens, or the output of the stage before."""
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x, self.turn)
        if self.norm is None or self.output is None:
            return x
        logits: Tensor = self.output(self.norm(x))
        return logits


def starts_of_stages(num_layers: int, num_stages: int) -> list[int]:
    """The first layer of each stage, and behind them the number of layers.

    Layers that are left over go to stages in the middle, one each.

    Examples
    --------
    >>> starts_of_stages(126, 8)
    [0, 15, 31, 47, 63, 79, 95, 111, 126]
    """
    base, left = divmod(num_layers, num_stages)
    found = [0, base]
    for _ in range(num_stages - 2):
        found.append(found[-1] + base + (left > 0))
        left -= left > 0
    return [*found, num_layers]


def shard_stage(part: PartOfDecoder, mesh: DeviceMesh) -> None:
    """A unit a layer, and one for the rest; all stay gathered until the last micro-batch."""
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in part.layers:
        fully_shard(layer, mesh=mesh, mp_policy=precision, reshard_after_forward=False)
    fully_shard(part, mesh=mesh, mp_policy=precision, reshard_after_forward=False)


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """In fp32."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def _of_this_torch(**forms: Any) -> dict[str, Any]:
    """Those arguments of a stage that this PyTorch has: up to 2.11 none are of gradients."""
    known = inspect.signature(PipelineStage).parameters
    return {name: form for name, form in forms.items() if name in known}


def main() -> None:
    """Train, and print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=("8b", "70b", "405b"), default="8b")
    for name, value in (("fsdp", 2), ("tensor", 1), ("pipeline", 2), ("chunks", 1), ("rank", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seq", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=2, help="sequences of all micro-batches")
    parser.add_argument("--recompute", default="full")
    parser.add_argument("--compiled", action="store_true", help="layers, by torch.compile")
    parser.add_argument("--float8", action="store_true", help="products of layers; needs torchao")
    given = parser.parse_args()
    sizes, ranks = SIZES[f"llama3-{given.model}"], given.fsdp * given.tensor
    dist.init_process_group(
        "fake", rank=given.rank * ranks, world_size=ranks * given.pipeline, store=FakeStore()
    )
    shape = (given.pipeline, given.fsdp, given.tensor)
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("pipeline", "shard", "tensor"))
    num_stages, micro = given.pipeline * given.chunks, given.batch // given.pipeline
    starts = starts_of_stages(sizes.layers, num_stages)
    policies = Training(recompute=given.recompute).policies(sizes.layers)
    parts, stages = [], []
    sent = torch.empty(
        micro, given.seq // given.tensor, sizes.hidden, dtype=torch.bfloat16, device="meta"
    ).requires_grad_()
    for number in range(given.rank, num_stages, given.pipeline):
        with torch.device("meta"):
            whole = Decoder(sizes, given.seq)
        if given.float8:
            in_float8(whole)
        if given.tensor > 1:
            split(whole, mesh["tensor"], float8=given.float8)
        for i, policy in enumerate(policies):
            whole.layers[i] = recomputing(whole.layers[i], policy)
            if given.compiled:
                whole.layers[i].compile(fullgraph=True)
        part = PartOfDecoder(whole, number, starts)
        shard_stage(part, mesh["shard"])
        part.to_empty(device="cuda")
        tokens = torch.empty(micro, given.seq, dtype=torch.long, device="meta")
        logits = torch.empty(
            micro, given.seq, sizes.vocab // given.tensor, dtype=torch.bfloat16, device="meta"
        )
        last = number == num_stages - 1
        if last and given.tensor > 1:
            logits = DTensor.from_local(logits, mesh["tensor"], [Shard(-1)], run_check=False)
        stages.append(
            PipelineStage(
                part,
                number,
                num_stages,
                torch.device("cuda"),
                input_args=tokens if number == 0 else sent,
                output_args=logits.requires_grad_() if last else sent,
                group=mesh["pipeline"].get_group(),
                **_of_this_torch(
                    input_grads=None if number == 0 else sent.detach(),
                    output_grads=logits.detach() if last else sent.detach(),
                ),
            )
        )
        parts.append(part)
    if given.chunks > 1:
        schedule = ScheduleInterleaved1F1B(stages, given.pipeline, loss_fn=loss_of)
    else:
        schedule = Schedule1F1B(stages[0], given.pipeline, loss_fn=loss_of)
    parameters = [one for part in parts for one in part.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-4, foreach=True)
    for _ in range(NUM_STEPS):
        torch.cuda.reset_peak_memory_stats()
        tokens, labels = (
            torch.zeros((given.batch, given.seq), dtype=torch.long, device="cuda") for _ in range(2)
        )
        with loss_parallel() if given.tensor > 1 else nullcontext():
            losses: list[Tensor] = []
            first, final = given.rank == 0, given.rank == given.pipeline - 1
            arguments = (tokens,) if first else ()
            if final:
                schedule.step(*arguments, target=labels, losses=losses)
            else:
                schedule.step(*arguments)
        del losses
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
    stats = torch.cuda.memory_stats()
    found = {f"{name}_bytes": stats[f"{name}_bytes.all.peak"] for name in ("reserved", "active")}
    print(json.dumps(vars(given) | found | {"torch": torch.__version__}))


if __name__ == "__main__":
    main()
