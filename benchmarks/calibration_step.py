"""A training step of the calibration, on the dry CUDA device; run by ``dry_calibration.py``.

The one argument is a row as JSON, as `dry_calibration.Row` describes it. A line of JSON with the
peaks of the last of three steps is printed: the first step lacks the optimizer's state. The line
says how many graphs Inductor compiled anew, because it has not kept them in its cache: while
Inductor compiles, its own tensors lie between those of the step, and the allocator's segments
are cut differently.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import earlier_torch  # noqa: F401
import torch
import torch.distributed as dist
from decoders import SIZES, Adapted, Decoder, Sizes, adapted
from sharded_llama import in_float8, recomputing, run_step, shard, split
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore

NUM_STEPS = 3


def built(row: dict[str, Any]) -> Decoder:
    """The model on the device, as one rank holds it."""
    sizes = adapted(SIZES[row["model"]], row["rank"], few=row["few_adapters"])
    if row["gpus"] == 1:
        return _alone(row, sizes)
    dist.init_process_group("fake", rank=0, world_size=row["gpus"], store=FakeStore())
    with torch.device("meta"):
        model = Decoder(replace(sizes, stepwise=row["held_logits"]), row["seq"])
    if row["float8"]:
        in_float8(model)
    sizes_of_mesh = (row["gpus"] // row["tensor"], row["tensor"])
    mesh = init_device_mesh("cuda", sizes_of_mesh, mesh_dim_names=("shard", "tensor"))
    if row["tensor"] > 1:
        split(model, mesh["tensor"], float8=row["float8"])
    for i, layer in enumerate(model.layers):
        model.layers[i] = _kept(layer, row["keeps"])
        if row["compiled"]:
            model.layers[i].compile(fullgraph=True)
    shard(model, mesh["shard"])
    return model.to_empty(device="cuda")


def _alone(row: dict[str, Any], sizes: Sizes) -> Decoder:
    """The model as torchtune has it: all in bf16, norms step by step."""
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = Decoder(replace(sizes, real=True), row["seq"])
    model.turn = model.turn.float()
    torch.set_default_dtype(torch.float32)
    if sizes.rank:
        _only_adapters(model)
    for i, layer in enumerate(model.layers):
        if row["compiled"]:
            layer.compile()
        model.layers[i] = _kept(layer, row["keeps"])
    model.to_empty(device="cuda")
    if sizes.tied:  # `to_empty` makes two of what is one
        model.output.weight = model.embedding.weight
    return model


def _only_adapters(model: nn.Module) -> None:
    trained = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, Adapted)
        for parameter in (*module.down.parameters(), *module.up.parameters())
    }
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in trained)


def _kept(layer: nn.Module, keeps: str) -> nn.Module:
    return recomputing(layer, "none" if keeps == "all" else keeps)


class OnHost(torch.autograd.graph.saved_tensors_hooks):
    """Tensors kept for the backward wait in host memory, except for parameters."""

    def __init__(self, model: nn.Module) -> None:
        mine = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

        def put(tensor: Tensor) -> tuple[bool, Tensor]:
            if tensor.untyped_storage().data_ptr() in mine or tensor.numel() < 1024:
                return False, tensor
            host = torch.empty_like(tensor, device="cpu", pin_memory=True)
            return True, host.copy_(tensor)

        def back(item: tuple[bool, Tensor]) -> Tensor:
            return item[1].to("cuda", non_blocking=True) if item[0] else item[1]

        super().__init__(put, back)


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy in single precision, summed."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")


def train(model: Decoder, row: dict[str, Any]) -> dict[str, int]:
    """The peaks of the last step."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    alone = row["gpus"] == 1
    how = {"fused" if row["fused"] else "foreach": True}
    optimizers = [torch.optim.AdamW(trained, lr=3e-4, **how)]
    if row["in_backward"]:
        optimizers = _in_backward(trained)
    loss = torch.compile(loss_of) if row["compiled_loss"] else loss_of
    shape = (row["batch"], row["seq"])
    held: list[Tensor] = []
    for _ in range(NUM_STEPS):
        torch.cuda.reset_peak_memory_stats()
        if row["tensor"] > 1:
            run_step(model, shape, row["tensor"])
        elif row["held_logits"]:
            _held_step(model, shape, held)
        else:
            _run_step(model, row, loss)
        if not alone:
            nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    stats = torch.cuda.memory_stats()
    return {f"{name}_bytes": stats[f"{name}_bytes.all.peak"] for name in ("reserved", "active")}


def _run_step(
    model: Decoder, row: dict[str, Any], loss: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """Forward and backward, with logits in pieces."""
    shape = (row["batch"], row["seq"])
    tokens, labels = (torch.zeros(shape, dtype=torch.long, device="cuda") for _ in range(2))
    with OnHost(model) if row["offload"] else nullcontext():
        logits = model(tokens, row["pieces"])
    targets = labels.tensor_split(row["pieces"], dim=1)
    total = sum(loss(one, target) for one, target in zip(logits, targets, strict=True))
    del logits
    (total / labels.numel()).backward()


def _held_step(model: Decoder, shape: tuple[int, int], held: list[Tensor]) -> None:
    """Logits in single precision, which `held` keeps until the next forward has made its own.

    So the variable of torchtitan's loop did in March 2024.
    """
    tokens, labels = (torch.zeros(shape, dtype=torch.long, device="cuda") for _ in range(2))
    held[:] = [model(tokens)[0].float()]
    functional.cross_entropy(held[0].flatten(0, 1), labels.flatten()).backward()


def _in_backward(trained: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
    """Update each parameter as soon as its gradient is there; no gradient is left for the end."""
    mine = {parameter: torch.optim.AdamW([parameter], fused=True) for parameter in trained}

    def stepped(parameter: nn.Parameter) -> None:
        mine[parameter].step()
        mine[parameter].zero_grad()

    for parameter in trained:
        parameter.register_post_accumulate_grad_hook(stepped)
    return []


def main() -> None:
    """Train, and print a line of JSON."""
    row = json.loads(sys.argv[1])
    peaks = train(built(row), row)
    anew = sum(counters["inductor"][f"fxgraph_cache_{how}"] for how in ("miss", "bypass"))
    print(json.dumps(peaks | {"compiled_anew": anew, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
