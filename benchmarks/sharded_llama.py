"""Llama 3 under FSDP2 and tensor parallelism, run by PyTorch with the recomputation of a plan.

    python -m schedsim.validation.dry_cuda --device h100-80gb --memory 160GB -- \\
        python benchmarks/sharded_llama.py --fsdp 8 --recompute keep=q+v+mixed

One rank of a fake process group trains for three steps on the dry CUDA device, and one line of JSON
says what PyTorch's allocator reserved and how many floating-point operations were run. The model
is that of ``decoders.py``; settings are those of torchtitan's pages: fp32 parameters
sharded by FSDP2, bf16 arithmetic, fp32 reduction, AdamW, gradients clipped. `--recompute` is that
of ``schedsim cluster``, layer by layer; ``selective`` is torchtitan's own policy, ``full`` its
checkpointing of whole layers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from decoders import SIZES, Decoder, Sizes
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from schedsim.clusters import Training

NUM_STEPS = 3  # the first lacks the optimizer's state
PRODUCTS = ("q", "k", "v", "o", "gate", "up", "down")
"""What the matrix products of a layer make, in order."""

_ATTENTION = {
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
}
_REDUCED = torch.ops._c10d_functional.reduce_scatter_tensor.default


def selective() -> Any:
    """torchtitan's: every second matrix product runs again, attention and reductions are kept."""
    counts = {True: 0, False: 0}

    def keeps(op: object, again: bool) -> bool:
        if op is torch.ops.aten.mm.default:
            counts[again] += 1
            return counts[again] % 2 == 1
        return op in _ATTENTION or op is _REDUCED

    return _contexts(keeps)


def keeping(names: frozenset[str]) -> Any:
    """A policy that keeps the outputs of the products `names`, and of attention for ``mixed``."""
    counts = {True: 0, False: 0}

    def keeps(op: object, again: bool) -> bool:
        if op is torch.ops.aten.mm.default:
            name = PRODUCTS[counts[again] % len(PRODUCTS)]
            counts[again] += 1
            return name in names
        if op is _REDUCED:
            done = counts[again]
            return ("o.part" if done <= PRODUCTS.index("o") + 1 else "m.part") in names
        return op in _ATTENTION and "mixed" in names

    return _contexts(keeps)


def _contexts(keeps: Callable[[object, bool], bool]) -> Any:
    def policy(context: Any, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
        if keeps(op, context.is_recompute):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def recomputing(layer: nn.Module, policy: str) -> nn.Module:
    """`layer` under one policy of ``schedsim cluster --recompute``."""
    if policy == "none":
        return layer
    if policy == "full":
        return checkpoint_wrapper(layer, preserve_rng_state=False)
    contexts = selective
    if policy != "selective":
        contexts = partial(keeping, frozenset(policy.removeprefix("keep=").split("+")))
    return checkpoint_wrapper(layer, context_fn=contexts, preserve_rng_state=False)


def in_float8(model: nn.Module) -> None:
    """Products of the layers in float8 with scales per tensor, gathered in float8."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    convert_to_float8_training(
        model,
        config=Float8LinearConfig(enable_fsdp_float8_all_gather=True),
        module_filter_fn=lambda _module, name: name != "output",
    )


def split(model: Decoder, mesh: DeviceMesh, *, float8: bool = False) -> None:
    """Tensor parallelism with the sequence between products split too, as torchtitan has it.

    With `float8`, what the products of layers read is gathered in float8.
    """
    parallelize_module(
        model,
        mesh,
        {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
            ),
        },
    )
    column, row, prepared = ColwiseParallel, RowwiseParallel, PrepareModuleInput
    if float8:
        from torchao.float8 import float8_tensor_parallel as styles

        column, row = styles.Float8ColwiseParallel, styles.Float8RowwiseParallel
        prepared = styles.PrepareFloat8ModuleInput
    row = partial(row, output_layouts=Shard(1))
    for layer in model.layers:
        whole = {"input_layouts": (Shard(1), None), "desired_input_layouts": (Replicate(), None)}
        plan = {
            "norm1": SequenceParallel(),
            "attention": prepared(**whole),
            "attention.query": column(),
            "attention.key": column(),
            "attention.value": column(),
            "attention.out": row(),
            "norm2": SequenceParallel(),
            "feed_forward": prepared(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
            ),
            "feed_forward.gate": column(),
            "feed_forward.up": column(),
            "feed_forward.down": row(),
        }
        parallelize_module(layer, mesh, plan)


def shard(model: Decoder, mesh: DeviceMesh) -> None:
    """FSDP2 as torchtitan has it: a unit a layer, and one for the rest; bf16, sums in fp32."""
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options: dict[str, Any] = {"mesh": mesh, "mp_policy": precision}
    for i, layer in enumerate(model.layers):
        fully_shard(layer, reshard_after_forward=i < len(model.layers) - 1, **options)
    fully_shard(model, **options)


def spread(sizes: Sizes, seq: int, fsdp: int, tensor: int, policies: list[str]) -> Decoder:
    """The model as one of `fsdp` x `tensor` ranks holds it, on the device."""
    dist.init_process_group("fake", rank=0, world_size=fsdp * tensor, store=FakeStore())
    mesh = init_device_mesh("cuda", (fsdp, tensor), mesh_dim_names=("shard", "tensor"))
    with torch.device("meta"):
        model = Decoder(sizes, seq)
    if tensor > 1:
        split(model, mesh["tensor"])
    for i, policy in enumerate(policies):
        model.layers[i] = recomputing(model.layers[i], policy)
    shard(model, mesh["shard"])
    return model.to_empty(device="cuda")


def train(model: Decoder, shape: tuple[int, int], tensor: int) -> dict[str, int]:
    """The allocator's counts of the last of `NUM_STEPS` steps, and the flops of one more."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True)
    for _ in range(NUM_STEPS):
        torch.cuda.reset_peak_memory_stats()
        run_step(model, shape, tensor)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
    stats = torch.cuda.memory_stats()
    found = {f"{name}_bytes": stats[f"{name}_bytes.all.peak"] for name in ("reserved", "active")}
    # By itself: a counter of flops keeps tensors for longer.
    with FlopCounterMode(display=False) as counter:
        run_step(model, shape, tensor)
    return found | {"flops": int(counter.get_total_flops())}


def run_step(model: Decoder, shape: tuple[int, int], tensor: int) -> None:
    """Forward and backward."""
    tokens, labels = (torch.zeros(shape, dtype=torch.long, device="cuda") for _ in range(2))
    with loss_parallel() if tensor > 1 else nullcontext():
        logits = model(tokens)[0]
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))
        del logits
        loss.backward()


def main() -> None:
    """Train, and print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=("8b", "70b"), default="8b")
    parser.add_argument("--fsdp", type=int, default=8)
    parser.add_argument("--tensor", type=int, default=1)
    parser.add_argument("--seq", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--recompute", default="selective")
    given = parser.parse_args()
    sizes = SIZES[f"llama3-{given.model}"]
    policies = Training(recompute=given.recompute).policies(sizes.layers)
    model = spread(sizes, given.seq, given.fsdp, given.tensor, policies)
    found = train(model, (given.batch, given.seq), given.tensor)
    print(json.dumps(vars(given) | found | {"torch": torch.__version__}))


if __name__ == "__main__":
    main()
