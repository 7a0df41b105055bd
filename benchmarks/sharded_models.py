"""The models of `sharded_peaks`, and the ways in which they are sharded and trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[nn.Module, ...], tuple[nn.Module, ...], tuple[Tensor, Tensor], Any]
"""A model, its blocks, the modules around them, its input and target, the loss."""


@dataclass(frozen=True)
class Way:
    """How a model is sharded, and how a step of it accumulates.

    Attributes
    ----------
    words
        The way in words.
    options
        Arguments of ``fully_shard``.
    step
        ``step(model, one)`` calls ``one()``, forward and backward, once for each micro-batch.
    """

    words: str
    num_ranks: int = 2
    options: dict[str, Any] = field(default_factory=dict)
    is_replicated: bool = False
    prefetches: bool = False
    step: Callable[[Any, Callable[[], None]], None] = lambda _, one: one()


def _without_sync(model: Any, one: Callable[[], None]) -> None:
    model.set_requires_gradient_sync(False)
    one()
    one()
    model.set_requires_gradient_sync(True)
    one()


def _gathered_between(model: Any, one: Callable[[], None]) -> None:
    model.set_reshard_after_backward(False)
    one()
    one()
    model.set_reshard_after_backward(True)
    one()


def _gathered_without_sync(model: Any, one: Callable[[], None]) -> None:
    model.set_reshard_after_backward(False)
    _without_sync(model, one)  # the last one gathers nothing, and frees nothing
    model.set_reshard_after_backward(True)
    model.reshard()
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()


def _reduced_later(model: Any, one: Callable[[], None]) -> None:
    model.set_requires_all_reduce(False)
    one()
    one()
    model.set_requires_all_reduce(True)
    one()


def _twice(_: Any, one: Callable[[], None]) -> None:
    one()
    one()


WAYS = {
    "sharded": Way("each block and the model are sharded (by blocks, the modules around too)"),
    "bf16": Way("bf16 parameters and fp32 reduction", options={"mixed": True}),
    "reshard-false": Way("`reshard_after_forward=False`", options={"reshard_after_forward": False}),
    "reshard-true": Way(
        "`reshard_after_forward=True`, of the model too", options={"reshard_after_forward": True}
    ),
    "reshard-int": Way(
        "`reshard_after_forward=2` on four ranks", 4, options={"reshard_after_forward": 2}
    ),
    "ahead": Way(
        "`set_modules_to_forward_prefetch` and `set_modules_to_backward_prefetch`, two ahead",
        prefetches=True,
    ),
    "hsdp": Way("two replicas of two shards", 4, is_replicated=True),
    "accumulated": Way("two micro-batches, each reduced", step=_twice),
    "no-sync-accumulated": Way(
        "three micro-batches, `set_requires_gradient_sync(False)` but for the last",
        step=_without_sync,
    ),
    "reshard-false-accumulated": Way(
        "three micro-batches, `set_reshard_after_backward(False)` but for the last",
        step=_gathered_between,
    ),
    "both-accumulated": Way(
        "three micro-batches with both of these, then `reshard()`", step=_gathered_without_sync
    ),
    "hsdp-no-sync-accumulated": Way(
        "replicas, and `set_requires_gradient_sync(False)`",
        4,
        is_replicated=True,
        step=_without_sync,
    ),
    "hsdp-reduced-later": Way(
        "replicas, and `set_requires_all_reduce(False)` but for the last of three micro-batches",
        4,
        is_replicated=True,
        step=_reduced_later,
    ),
}


# -- models ---------------------------------------------------------------------------------------

WIDTH, TOKENS = 64, 512


class Block(nn.Module):
    """A residual feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class FeedForward(nn.Module):
    """Blocks, with an embedding before and a head after them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(100, WIDTH), nn.Linear(WIDTH, 100)
        self.layers = nn.ModuleList(Block() for _ in range(4))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Convolutions(nn.Module):
    """A residual network of convolutions with group norms."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.layers = nn.ModuleList(_ConvBlock() for _ in range(4))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean((2, 3)))


class _ConvBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        self.norm = nn.GroupNorm(4, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        return torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))


def _tokens(num: int = 100, shape: tuple[int, ...] = (TOKENS,)) -> tuple[Tensor, Tensor]:
    return torch.randint(num, shape), torch.randint(num, shape)


def _of_logits(logits: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(), target.reshape(-1)
    )


def _feed_forward() -> Made:
    model = FeedForward()
    around = (model.embedding, model.head)
    return model, tuple(model.layers), around, _tokens(), _of_logits


def _convolutions() -> Made:
    model = Convolutions()
    data = torch.randn(8, 3, 16, 16), torch.randint(10, (8,))
    return model, tuple(model.layers), (model.stem, model.head), data, _of_logits


class _Logits(nn.Module):
    """A model of transformers that returns its logits alone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.inner(x, use_cache=False).logits


def _llama() -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="sdpa",
    )
    inner = LlamaForCausalLM(config)
    around = (inner.model.embed_tokens, inner.model.norm, inner.lm_head)
    return _Logits(inner), tuple(inner.model.layers), around, _tokens(256, (4, 64)), _of_logits


def _gpt2() -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=256,
        n_embd=64,
        n_layer=4,
        n_head=4,
        n_positions=64,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    inner = GPT2LMHeadModel(config)
    of = inner.transformer
    around = (of.wte, of.wpe, of.ln_f, inner.lm_head)
    return _Logits(inner), tuple(of.h), around, _tokens(256, (4, 64)), _of_logits


class _Vision(nn.Module):
    """An encoder of patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 4, 4)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True)
            for _ in range(4)
        )
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def _vision() -> Made:
    model = _Vision()
    data = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))
    return model, tuple(model.layers), (model.patches, model.head), data, _of_logits


FAMILIES = {
    "feed-forward": _feed_forward,
    "llama": _llama,
    "gpt2": _gpt2,
    "vision": _vision,
    "convolutions": _convolutions,
}


def made(family: str, way: str, level: str) -> tuple[nn.Module, tuple[Tensor, Tensor], Any]:
    """(model sharded over the ranks, (input, target), loss)."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.manual_seed(0)
    model, blocks, around, data, loss = FAMILIES[family]()
    of, size = WAYS[way], dist.get_world_size()
    shape = (2, size // 2) if of.is_replicated else (size,)
    names = ("replicate", "shard") if of.is_replicated else ("shard",)
    options = dict(of.options)
    if options.pop("mixed", False):
        policy = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
        options["mp_policy"] = MixedPrecisionPolicy(**policy)
    options["mesh"] = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for module in blocks:
        fully_shard(module, **options)
    for module in around if level == "block" else ():
        fully_shard(module, **options)
    fully_shard(model, **options)
    if of.prefetches:
        for here, block in enumerate(blocks):
            block.set_modules_to_forward_prefetch(list(blocks[here + 1 : here + 3]))
            block.set_modules_to_backward_prefetch(list(reversed(blocks[max(0, here - 2) : here])))
    return model, data, loss
