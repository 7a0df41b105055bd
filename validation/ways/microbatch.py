"""The inputs of a step in parts of its batch, and the weight of each part's loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from schedsim.errors import SchedsimError, UnsupportedError

from ..models.losses import CrossEntropy, PixelCrossEntropy
from ..torch_private.module_tables import AnyBatchNorm, buffers_of, gradient_hooks, set_buffers
from ..torch_private.pytrees import tree_flatten, tree_map_only, tree_unflatten
from .twin import twin

IGNORED = -100
"""Class number that cross entropies ignore by default."""


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch.

    Attributes
    ----------
    inputs, keywords
        Views of the samples of the whole batch.
    buffers
        Buffers of the loss: name -> the samples of this part.
    num_samples
    weight
        Weight of its loss in the loss of the whole batch.
    start
        Number of its first sample in the whole batch.
    """

    inputs: tuple[Any, ...]
    keywords: dict[str, Any]
    buffers: dict[str, Tensor]
    num_samples: int
    weight: float
    start: int = 0


class Splitter:
    """Cuts the inputs of a step along the batch, the first dimension.

    Every tensor whose first dimension is as long as the first tensor's is split, including buffers
    of the loss (targets kept in it); anything else goes to every part as a whole.
    """

    def __init__(self, model: nn.Module, loss: Any, num_parts: int) -> None:
        self.num_parts = num_parts
        self.loss = twin(loss) if isinstance(loss, nn.Module) else loss
        self._count = _counter(model, loss)
        self._whole = loss

    def parts(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> list[MicroBatch]:
        """The parts, in order; their sizes differ by at most one sample.

        A part without a target that counts is left out, because its mean would not be a number.
        """
        self._refresh()
        size = batch_size(inputs, keywords)
        num = min(self.num_parts, size)
        ends = [size * k // num for k in range(num + 1)]
        found = []
        for start, stop in pairwise(ends):
            cut = _cutter(size, start, stop)
            own, words = tree_map_only(Tensor, cut, (tuple(inputs), dict(keywords)))
            buffers = {}
            if isinstance(self._whole, nn.Module):
                buffers = {name: cut(b) for name, b in self._whole.named_buffers()}
            weight = (stop - start) / size
            found.append(MicroBatch(own, words, buffers, stop - start, weight, start))
        return self._weighed(found)

    def _refresh(self) -> None:
        """Copy the present attributes of the loss to its twin."""
        if not isinstance(self._whole, nn.Module):
            return
        for own, other in zip(self._whole.modules(), self.loss.modules(), strict=True):
            other.__dict__.update({k: v for k, v in vars(own).items() if k != "_modules"})

    def _weighed(self, parts: list[MicroBatch]) -> list[MicroBatch]:
        if self._count is None:
            return parts
        counts = [self._count(part) for part in parts]
        if isinstance(counts[0], Tensor):
            counts = torch.stack(counts).tolist()  # waits for the device only once
        total = sum(counts)
        if not total:
            return parts  # not a number, as for the whole batch
        return [replace(p, weight=n / total) for p, n in zip(parts, counts, strict=True) if n]

    @contextmanager
    def targets_of(self, part: MicroBatch) -> Iterator[None]:
        """Give the loss module the targets of `part` within the block."""
        if not part.buffers:
            yield
            return
        tables = [(path, *_owner(self.loss, path)) for path in part.buffers]
        had = [buffers_of(owner) for _, owner, _ in tables]
        try:
            for path, owner, name in tables:
                set_buffers(owner, {**buffers_of(owner), name: part.buffers[path]})
            yield
        finally:
            for (_, owner, _), table in zip(tables, had, strict=True):
                set_buffers(owner, table)


def batch_size(inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> int:
    """Length of the first dimension of the first tensor."""
    for leaf in tree_flatten((tuple(inputs), dict(keywords)))[0]:
        if isinstance(leaf, Tensor) and leaf.dim():
            return int(leaf.shape[0])
    raise UnsupportedError("no input has a batch to split", hint="leave accumulate= out")


def _cutter(size: int, start: int, stop: int) -> Callable[[Tensor], Tensor]:
    def cut(tensor: Tensor) -> Tensor:
        if tensor.dim() and tensor.shape[0] == size:
            return tensor[start:stop]
        return tensor

    return cut


def _owner(module: nn.Module, path: str) -> tuple[nn.Module, str]:
    parent, _, name = path.rpartition(".")
    return module.get_submodule(parent), name


def check_splits(model: nn.Module) -> None:
    """Refuse models for which parts of a batch make another step.

    Raises
    ------
    UnsupportedError
        A batch norm in training looks at all samples; or a parameter has a hook, which would be
        called for each part and again for the sum.
    """
    for name, module in model.named_modules():
        if isinstance(module, AnyBatchNorm) and module.training:
            raise UnsupportedError(
                f"{name or type(module).__name__} normalises over the batch: with micro-batches "
                "its results and statistics are those of smaller batches",
                hint="put it in eval mode, use GroupNorm or LayerNorm, or leave accumulate= out",
            )
    for name, parameter in model.named_parameters():
        if type(parameter.data) is not Tensor:
            raise UnsupportedError(
                f"{name} is a {type(parameter.data).__name__}: sharded gradients are reduced "
                "whenever they are made",
                hint="accumulate in your own loop, over steps that reduce",
            )


def check_hooks(model: nn.Module) -> None:
    """Refuse hooks on parameters' gradients."""
    for name, p in model.named_parameters():
        if gradient_hooks(p):
            raise UnsupportedError(
                f"a hook on the gradient of {name} would be called for every micro-batch",
                hint="leave accumulate= out, or do what the hook does after backward",
            )


def combined(parts: list[MicroBatch], losses: list[Tensor]) -> Tensor:
    """The loss of the whole batch."""
    total = losses[0] * parts[0].weight
    for part, loss in zip(parts[1:], losses[1:], strict=True):
        total = total + loss * part.weight
    return total


# -- what a loss is a mean over ----------------------------------------------------------------


def _counter(model: nn.Module, loss: Any) -> Callable[[MicroBatch], Any] | None:
    """The function that counts the targets of a part, for losses that are means over targets."""
    if isinstance(loss, CrossEntropy | PixelCrossEntropy):
        return lambda part: (part.buffers["target"] != IGNORED).sum()
    ignored = IGNORED
    if isinstance(loss, nn.CrossEntropyLoss):
        if loss.reduction != "mean" or loss.weight is not None:
            return None
        ignored = loss.ignore_index
    elif loss is not functional.cross_entropy:
        return _labels_counter(model) if loss is None else None

    def count(part: MicroBatch) -> Any:
        target = part.inputs[-1]
        if not isinstance(target, Tensor) or target.is_floating_point():
            return part.num_samples
        return (target != ignored).sum()

    return count


def _labels_counter(model: nn.Module) -> Callable[[MicroBatch], Any] | None:
    """A counter of labels for models of transformers, whose own loss is the mean over labels."""
    if not hasattr(model, "loss_function"):
        return None
    causal = type(model).__name__.endswith(("ForCausalLM", "LMHeadModel"))

    def count(part: MicroBatch) -> Any:
        labels = part.keywords.get("labels")
        if not isinstance(labels, Tensor) or labels.is_floating_point():
            return part.num_samples
        if part.keywords.get("num_items_in_batch") is not None:
            raise SchedsimError(
                "num_items_in_batch is given: the loss is a sum already",
                hint="leave it out, or accumulate in your own loop",
            )
        seen = labels[..., 1:] if causal else labels
        return (seen != IGNORED).sum()

    return count


def clone_tensors(tree: Any) -> Any:
    """The tree with tensors copied to storages of their own."""
    leaves, spec = tree_flatten(tree)
    made = [
        leaf.detach().clone().requires_grad_(leaf.requires_grad)
        if isinstance(leaf, Tensor)
        else leaf
        for leaf in leaves
    ]
    return tree_unflatten(made, spec)


def bytes_of(tree: Any) -> int:
    """Bytes of the elements of the tensors in `tree`."""
    leaves = tree_flatten(tree)[0]
    return sum(t.numel() * t.element_size() for t in leaves if isinstance(t, Tensor))


def is_close(one: Tensor, two: Tensor) -> bool:
    """Whether two losses are equal within rounding."""
    low = {torch.float16, torch.bfloat16} & {one.dtype, two.dtype}
    rtol = 5e-2 if low else 1e-3
    return torch.allclose(one.double(), two.double(), rtol=rtol, atol=1e-5)
