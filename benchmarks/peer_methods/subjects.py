"""The models on which methods are compared, and what the methods need to know of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from schedsim.validation.models import build_model
from torch import Tensor, nn

SIZES = {
    # Kernels take most of a step at these widths; --quick is for a look.
    "gpt2": "layers=6,hidden=256,heads=4,vocab=2000,positions=256,seq=256,batch=2",
    "llama": "layers=6,hidden=256,heads=4,ffn=688,vocab=2000,seq=256,batch=2",
    "vit": "layers=6,hidden=256,heads=4,image=128,patch=8,classes=100,batch=2",
    "resnet": "depths=2-2-2-2,width=32,image=96,classes=100,batch=4",
    "unet": "levels=3,width=24,image=96,batch=2",
}
QUICK_SIZES = {
    "gpt2": "layers=3,hidden=128,heads=4,vocab=500,positions=128,seq=128,batch=4",
    "llama": "layers=3,hidden=128,heads=4,ffn=344,vocab=500,seq=128,batch=4",
    "vit": "layers=3,hidden=128,heads=4,image=64,patch=8,classes=10,batch=4",
    "resnet": "depths=1-1-1-1,width=16,image=64,classes=10,batch=4",
    "unet": "levels=2,width=16,image=64,batch=2",
}
BUILDERS = {"llama": "llama2-7b", "vit": "vit-b16", "resnet": "resnet50"}
TITLES = {
    "gpt2": "GPT-2",
    "llama": "Llama",
    "vit": "ViT",
    "resnet": "ResNet",
    "unet": "U-Net",
    "hf-gpt2": "GPT-2 of transformers",
}


@dataclass(frozen=True)
class Subject:
    """A model, a step of it, and the modules that block-wise methods take.

    Attributes
    ----------
    blocks
        The repeated modules, first to last.
    parts
        The model as a sequence of modules; empty if the model is no sequence.
    enable
        Turns on the model's own checkpointing and returns the function that turns it off; ``None``
        if the model has none.
    """

    name: str
    model: nn.Module
    inputs: tuple[Any, ...]
    loss: Callable[..., Tensor]
    blocks: list[nn.Module]
    parts: list[nn.Module]
    enable: Callable[[], Callable[[], None]] | None = None

    def output(self, forward: Callable[..., Any] | None = None) -> Any:
        """The output of the model, or of `forward` in its place."""
        return (forward or self.model)(*self.inputs)


def load_subject(name: str, *, quick: bool) -> Subject:
    """The subject called `name`, its model in training mode, its weights from a seed."""
    from schedsim.validation.models import read_options

    if name == "hf-gpt2":
        return _of_transformers(quick)
    options = read_options((QUICK_SIZES if quick else SIZES)[name])
    built = build_model(BUILDERS.get(name, name), **options)
    model = built.model.train()
    assert built.loss is not None
    if isinstance(model, nn.Sequential):
        parts = list(model)
        blocks = parts[1:-1]
    else:
        parts = []
        blocks = [block for _, block, _ in model.blocks()][:-1]  # type: ignore[operator]
    return Subject(name, model, built.inputs, built.loss, blocks, parts)


def _of_transformers(quick: bool) -> Subject:
    import transformers

    width, layers, seq = (128, 3, 128) if quick else (256, 6, 256)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=width, n_layer=layers, n_head=4, n_positions=seq, vocab_size=2000, use_cache=False
    )
    model = transformers.GPT2LMHeadModel(config).train()
    ids = torch.randint(config.vocab_size, (2, seq))
    targets = torch.randint(config.vocab_size, (2 * seq,))

    def loss(output: Any) -> Tensor:
        return nn.functional.cross_entropy(output.logits.flatten(0, 1), targets)

    def enable() -> Callable[[], None]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return model.gradient_checkpointing_disable

    blocks = list(model.transformer.h)
    return Subject("hf-gpt2", model, (ids,), loss, blocks, [], enable)
