"""The dry CUDA device against published peaks of real GPUs: Llama 3 8B under FSDP2, eager.

    python -m schedsim.validation.dry_cuda --device h100-80gb --memory 102GB -- \\
        python benchmarks/dry_calibration.py --gpus 8

The model is written here from its published sizes; the settings are those of torchtitan's benchmark
page of December 2024 (``benchmarks/llama3_h100_202412_torchtitan.md``): 8192 tokens, batch 2 a
GPU, fp32 parameters sharded by FSDP2, bf16 arithmetic, fp32 reduction, AdamW, gradients clipped,
every second matrix product and all attentions kept by selective activation checkpointing. One rank
of a fake process group; flash attention, as PyTorch took by default then
(``TORCH_CUDNN_SDPA_DEPRIORITIZED=1``). The page gives reserved GiB.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

PUBLISHED_GIB = {8: 82.4, 128: 67.0}
HIDDEN, LAYERS, HEADS, KV_HEADS, FFN, VOCAB = 4096, 32, 32, 8, 14336, 128256
WIDTH = HIDDEN // HEADS
NUM_STEPS = 3  # the first lacks the optimizer's state

_KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}


def linear(given: int, made: int) -> nn.Linear:
    """Without a bias."""
    return nn.Linear(given, made, bias=False)


def turned(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Rotary positions, as complex numbers in single precision."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn).flatten(3).type_as(x)


def repeated(x: torch.Tensor) -> torch.Tensor:
    """Keys or values, copied for every head of their group."""
    batch, seq = x.shape[:2]
    groups = HEADS // KV_HEADS
    wide = x[:, :, :, None, :].expand(batch, seq, KV_HEADS, groups, WIDTH)
    return wide.reshape(batch, seq, HEADS, WIDTH)


class Attention(nn.Module):
    """Causal, with grouped keys."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = linear(HIDDEN, HIDDEN), linear(HIDDEN, HIDDEN)
        self.key, self.value = (linear(HIDDEN, KV_HEADS * WIDTH) for _ in range(2))

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        batch, seq, _ = x.shape
        rows = (self.query(x), self.key(x), self.value(x))
        query, key, value = (row.view(batch, seq, -1, WIDTH) for row in rows)
        query, key = turned(query, turn), repeated(turned(key, turn))
        heads = (one.transpose(1, 2) for one in (query, key, repeated(value)))
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(mixed.transpose(1, 2).contiguous().view(batch, seq, -1))


class FeedForward(nn.Module):
    """Gated."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            linear(HIDDEN, FFN),
            linear(HIDDEN, FFN),
            linear(FFN, HIDDEN),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """A layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.norm1, self.norm2 = (nn.RMSNorm(HIDDEN, eps=1e-5) for _ in range(2))

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), turn)
        return x + self.feed_forward(self.norm2(x))


class Llama(nn.Module):
    """Llama 3 8B."""

    def __init__(self, seq: int) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(VOCAB, HIDDEN), linear(HIDDEN, VOCAB)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, eps=1e-5)
        turn = torch.empty(1, seq, 1, WIDTH // 2, dtype=torch.complex64)
        self.register_buffer("turn", turn, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.turn)
        return self.output(self.norm(x))


def selective() -> object:
    """Every second matrix product is computed again, attention and reductions are kept."""
    products = {True: 0, False: 0}

    def policy(context: object, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
        skipped = False
        if op is torch.ops.aten.mm.default:
            products[context.is_recompute] += 1
            skipped = products[context.is_recompute] % 2 == 0
        keep = op in _KEPT and not skipped
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def sharded(gpus: int, seq: int) -> Llama:
    """The model as one of `gpus` ranks holds it, on the device."""
    dist.init_process_group("fake", rank=0, world_size=gpus, store=FakeStore())
    with torch.device("meta"):
        model = Llama(seq)
    for i, layer in enumerate(model.layers):
        model.layers[i] = checkpoint_wrapper(layer, context_fn=selective, preserve_rng_state=False)
    mesh = init_device_mesh("cuda", (gpus,))
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for i, layer in enumerate(model.layers):
        fully_shard(layer, mesh=mesh, mp_policy=precision, reshard_after_forward=i < LAYERS - 1)
    fully_shard(model, mesh=mesh, mp_policy=precision)
    return model.to_empty(device="cuda")


def main() -> None:
    """Print the peaks of the last step beside the published one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=8, choices=sorted(PUBLISHED_GIB))
    parser.add_argument("--seq", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=2)
    given = parser.parse_args()
    model = sharded(given.gpus, given.seq)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True)
    shape = (given.batch, given.seq)
    for _ in range(NUM_STEPS):
        torch.cuda.reset_peak_memory_stats()
        tokens, labels = (torch.zeros(shape, dtype=torch.long, device="cuda") for _ in range(2))
        optimizer.zero_grad()
        logits = model(tokens)
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))
        del logits
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
    stats = torch.cuda.memory_stats()
    active, reserved = (stats[f"{name}_bytes.all.peak"] / 2**30 for name in ("active", "reserved"))
    published = PUBLISHED_GIB[given.gpus]
    print(
        f"{given.gpus} GPUs: active {active:.2f} GiB, reserved {reserved:.2f} GiB, published "
        f"{published} GiB reserved, ratio {reserved / published:.3f}"
    )


if __name__ == "__main__":
    main()
