"""Nodes of autograd's graph: their numbers, functions, and the one of a compiled graph."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

_OF_NO_BYTES = frozenset(
    {
        "torch::autograd::AccumulateGrad",
        "AliasBackward",
        "AsStridedBackward",
        "DetachBackward",
        "DiagonalBackward",
        "ExpandBackward",
        "MovedimBackward",
        "PermuteBackward",
        "ReshapeAliasBackward",
        "SelectBackward",
        "SliceBackward",
        "SplitBackward",
        "SplitWithSizesBackward",
        "SqueezeBackward",
        "TBackward",
        "TransposeBackward",
        "UnbindBackward",
        "UnfoldBackward",
        "UnsafeSplitBackward",
        "UnsafeViewBackward",
        "UnsqueezeBackward",
        "ViewAsComplexBackward",
        "ViewAsRealBackward",
        "ViewBackward",
    }
)
"""Nodes of views, by their names without a number, and those of leaves."""


def sequence_number() -> int:
    """The number that the next autograd node will carry."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def current_node_number() -> int:
    """The number of the autograd node whose backward runs now; -1 where none does."""
    node = torch._C._current_autograd_node()
    return -1 if node is None else int(node._sequence_nr())


def gradient_place(tensor: torch.Tensor) -> tuple[int, int]:
    """What tells where gradients of `tensor` are added from other such places, while it lives."""
    node = tensor.grad_fn
    if node is None:
        return -1, id(tensor)
    return int(node._sequence_nr()), int(tensor.output_nr)


def when_whole(
    parameters: Collection[int], action: Callable[[torch.Tensor], None]
) -> list[RemovableHandle]:
    """Call `action` with the gradients that the running backward adds to `.grad`, once each.

    Of those `parameters`, by their ids, to which the node gives gradients whose backward runs now.
    Those with hooks of their own are left out, as these may return another gradient.
    """
    node: Any = torch._C._current_autograd_node()
    found = []
    for source, _ in node.next_functions if node is not None else ():
        parameter: Any = getattr(source, "variable", None)
        if id(parameter) in parameters and not parameter._backward_hooks:
            found.append(source.register_prehook(lambda given: action(given[0])))
    return found


def function_of(context: object) -> type | None:
    """The class of the autograd function whose forward has `context` as its first argument."""
    found: type | None = getattr(context, "_forward_cls", None)
    return found


@contextlib.contextmanager
def autograd_within_an_op() -> Iterator[None]:
    """Let autograd work in the kernel of an op, which runs below it."""
    keys = torch._C.DispatchKey
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for name in ("AutogradCPU", "AutogradOther", "AutogradFunctionality", "ADInplaceOrView"):
        excluded = excluded.remove(getattr(keys, name))
    included = torch._C._dispatch_tls_local_include_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded), torch.enable_grad():
        yield


def node_of_graph(found: Any) -> Any:
    """The node of the autograd graph of the compiled graph that returned `found`, or ``None``."""
    for one in found if isinstance(found, tuple | list) else (found,):
        node: Any = one.grad_fn if isinstance(one, torch.Tensor) else None
        if node is not None and is_of_graph(node):
            return node
    return None


def is_of_graph(node: Any) -> bool:
    """Whether an autograd node is that of a compiled graph."""
    return type(node).__name__ == "CompiledFunctionBackward"


def made_bytes(node: Any) -> int:
    """Bytes of what a node of the autograd graph has made, as its backward expects gradients of it.

    0 for views, and for the gradients of leaves. What is there still of it cannot be told.
    """
    if node.name().rstrip("0123456789") in _OF_NO_BYTES:
        return 0
    found = (it for it in node._input_metadata if all(isinstance(n, int) for n in it.shape))
    return sum(math.prod(it.shape) * it.dtype.itemsize for it in found)


def saved_by(node: Any) -> Iterator[torch.Tensor]:
    """The tensors that a node of the autograd graph holds for its backward, not unpacked.

    Those that were given to hooks, as of a checkpoint, are left out where hooks keep something
    else, and those that a transform of ``torch.func`` has wrapped.
    """
    for name in dir(type(node)):
        if not name.startswith("_raw_saved_"):
            continue
        with contextlib.suppress(RuntimeError):  # its backward has run
            found = getattr(node, name)
            for one in found if isinstance(found, tuple | list) else (found,):
                held = getattr(one, "data", None)
                if isinstance(held, torch.Tensor) and not _is_wrapped(held):
                    yield held


def unsaved_by(node: Any) -> RuntimeError | None:
    """Why the node of a compiled graph cannot have what it has saved; ``None`` where it can."""
    try:
        _ = node.saved_tensors
    except RuntimeError as error:
        return error
    return None


def _is_wrapped(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is one of a transform of ``torch.func``, which has no bytes of its own."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def has_saving_hooks() -> bool:
    """Whether hooks for saved tensors hold: a backward may get copies of what was saved."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
