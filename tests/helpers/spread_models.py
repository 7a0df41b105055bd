"""Models spread over ranks as plans take them: FSDP2, HSDP, tensor parallelism, both."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import nn

WIDTH = 64
SPLIT = ("tensor parallel", "sequence parallel", "spread between blocks", "loss parallel")
"""Where each layer is on all ranks."""


class Block(nn.Module):
    """A residual feed-forward layer."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        """Same shape."""
        return x + self.down(torch.relu(self.up(x)))


class Around(nn.Module):
    """Blocks in a list, with an embedding before and a head after them."""

    def __init__(self, block):
        super().__init__()
        self.embedding = nn.Embedding(100, WIDTH)
        self.layers = nn.ModuleList(block() for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 100)

    def forward(self, ids):
        """Logits."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def made(kind, compile_block=lambda block: None):
    """(model spread over the ranks, the same whole, inputs, loss).

    `compile_block` is called with each block before anything is sharded.
    """
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    splits = kind in SPLIT[1:] or kind == "split and sharded"
    around = splits or kind in ("norm and head", "both ends", "root")
    make = lambda: nn.Sequential(*(Block() for _ in range(4)))  # noqa: E731
    if around:
        make = partial(Around, Normed if splits else Block)
    model, whole = make(), make()
    whole.load_state_dict(model.state_dict())
    size = dist.get_world_size()
    shape = (2, size // 2) if kind == "replicated" else (size,)
    names = ("replicate", "shard") if kind == "replicated" else ("shard",)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    options = {}
    if kind == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        options["mp_policy"] = policy
    if kind == "stays gathered":
        options["reshard_after_forward"] = False
    if kind == "smaller shards":
        options["reshard_after_forward"] = 2
    layers = list(model.layers if around else model)
    for layer in layers:
        compile_block(layer)
    if kind == "split and sharded":
        both = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("shard", "split"))
        split_sequences(model, both["split"], kind)
        for module in [*layers, model.embedding, [model.norm, model.head], model]:
            fully_shard(module, mesh=both["shard"])
    elif splits:
        split_sequences(model, mesh, kind)
    elif kind == "tensor parallel":
        for layer in layers:
            parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    else:
        if kind == "together":
            fully_shard(layers[:2], mesh=mesh)
        else:
            outer = {
                "norm and head": [model.embedding, [model.norm, model.head]] if around else [],
                "both ends": [[model.embedding, model.norm, model.head]] if around else [],
            }.get(kind, [])
            for module in [*layers, *outer]:
                fully_shard(module, mesh=mesh, **options)
        fully_shard(model, mesh=mesh, **options)
    if kind == "smaller shards":
        model.set_reshard_after_backward(False)
    if kind == "ahead":
        layers[0].set_modules_to_forward_prefetch([layers[1]])
    if around:
        data = (torch.randint(100, (256,)), torch.randint(100, (256,)))
        return model, whole, data, nn.functional.cross_entropy
    return model, whole, (torch.randn(256, WIDTH), torch.randn(256, WIDTH)), nn.functional.mse_loss


class Normed(Block):
    """A block with a norm before its products."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        """Same shape."""
        return x + self.down(torch.relu(self.up(self.norm(x))))


def split_sequences(model, mesh, kind):
    """Tensor parallelism whose sums and norms are split along the sequence, as torchtitan's."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    whole, by_rows = (Replicate(),), (Shard(0),)
    ends = {"output_layouts": Replicate()}
    passed = {"output_layouts": Shard(0), "use_local_output": kind != "spread between blocks"}
    if kind == "loss parallel":
        ends = {"output_layouts": Shard(-1), "use_local_output": False}
    around = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), **passed),
        "norm": SequenceParallel(sequence_dim=0),
        "head": ColwiseParallel(input_layouts=Shard(0), **ends),
    }
    parallelize_module(model, mesh, around)
    inside = {
        "norm": SequenceParallel(sequence_dim=0),
        "up": PrepareModuleInput(input_layouts=by_rows, desired_input_layouts=whole),
        "down": RowwiseParallel(**passed),
    }
    for layer in model.layers:
        parallelize_module(layer, mesh, inside)
        parallelize_module(layer, mesh, {"up": ColwiseParallel()})


@contextmanager
def loss_of(kind):
    """Where the loss of split logits is computed."""
    from torch.distributed.tensor.parallel import loss_parallel

    with loss_parallel() if kind == "loss parallel" else nullcontext():
        yield
