"""Masks of attention that a graph makes, and that the plain step leaves out if they mask nothing.

An explicit mask that masks nothing changes no product, but it may choose another kernel, with other
last bits; and transformers repeats keys and values of grouped queries beside a mask, where the
kernel shares them without one. Whether bits differ is tried on made-up numbers of one sample.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_run: Callable[..., Tensor] = _ATTENTION
_FORM = "example_value"  # what Dynamo's nodes keep their fake tensors by
_OPTIONS = ("dropout_p", "scale", "enable_gqa")


@dataclass(frozen=True)
class _Attention:
    """A call of attention with a mask.

    Attributes
    ----------
    mask
        The node of the mask.
    forms
        Fake tensors of queries, keys and values; ``None`` where they are not known.
    num_groups
        How often the graph repeats the heads of keys and values.
    options
        What the call is given besides.
    is_outermost
        Whether it stands in the graph itself, and not in one that it calls.
    """

    mask: fx.Node
    forms: tuple[Any, ...] | None
    num_groups: int
    options: tuple[tuple[str, Any], ...]
    is_outermost: bool


def explicit_masks_round(graph_module: fx.GraphModule) -> bool:
    """Whether attention in a graph of Dynamo's rounds otherwise by masks that mask nothing.

    Where that cannot be tried, it is taken to. A mask that masks more than later tokens whatever a
    step is given, as one of a sliding window, is there in the plain step too. O(attention of one
    sample), for each form of it.
    """
    seen: set[Any] = set()
    for one in _attention_in(graph_module):
        masks: list[Tensor | None] = [None]
        if one.is_outermost:
            masks = [_masking_nothing(graph_module, one.mask, fill) for fill in _FILLS]
        left_out = [mask for mask in masks if mask is None or _may_be_left_out(mask)]
        if not left_out:
            continue
        if one.forms is None:
            return True
        known = left_out[0]
        shapes = tuple((tuple(map(_as_int, t.shape)), t.dtype) for t in one.forms)
        is_causal = None if known is None else not bool(_seen_in(known).all())
        dtype = torch.bool if known is None else known.dtype
        key = (shapes, one.num_groups, one.options, is_causal, dtype)
        if key in seen:
            continue
        seen.add(key)
        for causal in (True, False) if is_causal is None else (is_causal,):
            if _rounds(one, dtype, causal):
                return True
    return False


def _attention_in(graph_module: fx.GraphModule) -> Iterator[_Attention]:
    for module in graph_module.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if node.op != "call_function" or node.target is not _ATTENTION:
                continue
            mask = node.kwargs.get("attn_mask", node.args[3] if len(node.args) > 3 else None)
            if not isinstance(mask, fx.Node):
                continue
            read = [*node.args[:3], *(node.kwargs.get(it) for it in ("query", "key", "value"))]
            read = [it for it in read if isinstance(it, fx.Node)]
            forms = [it.meta.get(_FORM) for it in read]
            is_known = len(forms) == 3 and all(isinstance(it, Tensor) for it in forms)
            num_groups = _num_groups(read[1]) if is_known else 1
            given = dict(zip(("dropout_p",), node.args[4:5], strict=False)) | node.kwargs
            # A number that is open in the graph is left out.
            options = [(it, given[it]) for it in _OPTIONS if isinstance(given.get(it), int | float)]
            yield _Attention(
                mask,
                tuple(forms) if is_known else None,
                num_groups,
                tuple(options),
                module is graph_module,
            )


def _num_groups(key: fx.Node) -> int:
    """How often heads are repeated in `key`: an expanded dimension behind theirs, flattened."""
    expanded = key.args[0] if key.target == "reshape" and key.args else None
    if isinstance(expanded, fx.Node) and expanded.target == "expand":
        form = expanded.meta.get(_FORM)
        if isinstance(form, Tensor) and form.ndim == 5 and form.stride(2) == 0:
            return _as_int(form.shape[2])
    return 1


def _as_int(size: Any) -> int:
    """A size of the first call."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


def _ones(shape: list[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A mask of tokens that masks none."""
    return torch.ones(shape, dtype=dtype, device=device)


def _places(shape: list[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The positions of tokens of one text."""
    if dtype is torch.bool or not shape:
        return _ones(shape, dtype, device)
    return torch.arange(shape[-1], dtype=dtype, device=device).expand(shape)


_FILLS = (_ones, _places)


def _masking_nothing(
    graph_module: fx.GraphModule, mask: fx.Node, fill: Callable[..., Tensor]
) -> Tensor | None:
    """The mask where `fill` gives the inputs of which it is made.

    ``None`` if these are more than whole numbers.
    """
    needed, waiting = {mask}, [mask]
    while waiting:
        new = [it for it in waiting.pop().all_input_nodes if it not in needed]
        needed.update(new)
        waiting += new
    values: dict[fx.Node, Any] = {}
    with torch.no_grad():
        for node in graph_module.graph.nodes:
            if node not in needed:
                continue
            if any(map(_writes, node.users)):
                return None
            try:
                values[node] = _value_of(node, values, fill)
            except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError):
                return None
    value = values[mask]
    return value if isinstance(value, Tensor) and value.ndim >= 2 else None


def _value_of(node: fx.Node, values: Mapping[fx.Node, Any], fill: Callable[..., Tensor]) -> Any:
    if node.op == "placeholder":
        form = node.meta[_FORM]
        if not isinstance(form, Tensor):
            return _as_int(form)
        if form.is_floating_point() or form.is_complex():
            raise TypeError("a mask of activations")
        return fill([*map(_as_int, form.shape)], form.dtype, form.device)
    args, keywords = fx.map_arg((node.args, node.kwargs), values.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **keywords)
    if node.op == "call_function" and callable(node.target):
        return node.target(*args, **keywords)
    raise TypeError(f"a mask made by a {node.op}")


def _writes(node: fx.Node) -> bool:
    if node.op == "call_method":
        return str(node.target).endswith("_") and not str(node.target).startswith("__")
    return node.target is operator.setitem


def _seen_in(mask: Tensor) -> Tensor:
    """Which keys each query sees."""
    return mask if mask.dtype is torch.bool else mask > torch.finfo(mask.dtype).min / 2


def _may_be_left_out(mask: Tensor) -> bool:
    """Whether each query sees all keys, or all but later ones."""
    seen = _seen_in(mask)
    return bool(seen.all()) or torch.equal(seen, torch.ones_like(seen).tril())


def _rounds(attention: _Attention, dtype: torch.dtype, causal: bool) -> bool:
    """Whether bits differ with a mask that masks nothing, or nothing but later tokens."""
    assert attention.forms is not None
    options = dict(attention.options)
    tensors = []
    device = attention.forms[0].device
    made = torch.Generator(device).manual_seed(0)
    num_groups = attention.num_groups
    for i, form in enumerate(attention.forms):
        shape = [1, *map(_as_int, form.shape[1:])]
        shape[1] //= num_groups if i else 1
        one = torch.randn(shape, dtype=form.dtype, device=device, generator=made)
        tensors.append(one.requires_grad_())
    num_queries, num_keys = tensors[0].shape[-2], tensors[1].shape[-2]
    seen = torch.ones(1, 1, num_queries, num_keys, dtype=torch.bool, device=device)
    if causal:
        seen = seen.tril()
    mask = seen
    if dtype is not torch.bool:
        mask = torch.zeros(seen.shape, dtype=dtype, device=device)
        mask.masked_fill_(~seen, torch.finfo(dtype).min)
    devices = [device] if device.type == "cuda" else []
    query, *others = tensors
    without = {"is_causal": causal and num_queries > 1}
    if num_groups > 1:
        without["enable_gqa"] = True
    found = []
    for given in ({"attn_mask": mask}, without):
        with torch.random.fork_rng(devices, device_type="cuda"), torch.enable_grad():
            torch.manual_seed(0)
            keys = others
            if given is not without and num_groups > 1:
                keys = [_repeated(one, num_groups) for one in others]
            result = _run(query, *keys, **(options | given))
            weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype, device=device)
            gradients = torch.autograd.grad(result, tensors, weights.view_as(result))
        found.append([result.detach(), *gradients])
    return not all(map(torch.equal, *found))


def _repeated(tensor: Tensor, num_groups: int) -> Tensor:
    """Each head, the second dimension, so many times."""
    samples, heads, *rest = tensor.shape
    return tensor[:, :, None].expand(samples, heads, num_groups, *rest).reshape(samples, -1, *rest)
