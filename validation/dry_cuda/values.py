"""Values for the dry device: every CUDA op runs again on the CPU, on the same bytes.

Memory of the device is memory of this process, so that a CPU tensor can be laid over a CUDA tensor.
Below autograd, an op first runs as CUDA's op, which allocates and computes nothing. Then the CPU's
op runs on the tensors laid over, and its results go where CUDA's would be. Bytes on the device are
those of CUDA alone. This is slow, and meant for small models, to compare gradients.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from schedsim.errors import UnsupportedError

from ..torch_private.op_modes import TorchDispatchMode, is_functional, schema_of
from ..torch_private.pytrees import tree_flatten, tree_map
from .values_kernels import SUBSTITUTES

aten = torch.ops.aten

_MAKES_NOTHING = {
    aten.empty,
    aten.empty_strided,
    aten.empty_like,
    aten.new_empty,
    aten.new_empty_strided,
    aten.record_stream,
    aten.set_,
    aten.resize_,
    aten.detach,
    aten.is_pinned,
    aten._pin_memory,
    aten._local_scalar_dense,
    aten._reshape_alias,
    aten.alias,
    aten.lift_fresh,
    aten._cudnn_init_dropout_state,
    aten._cudnn_rnn_flatten_weight,  # copies, which are done
}
"""Ops that compute nothing, or whose result is read from true bytes."""

_SHAPED_BY_VALUES = {aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim}
"""Ops whose outputs have as many elements as the values say."""


def overlay(tensor: Tensor) -> Tensor:
    """A CPU tensor over the bytes of `tensor`, which must outlive it."""
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    if not size or not tensor.numel():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    raw = (ctypes.c_uint8 * size).from_address(storage.data_ptr())
    flat = torch.frombuffer(raw, dtype=torch.uint8)
    empty = torch.empty(0, dtype=tensor.dtype)
    return empty.set_(
        flat.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    )


def _on_cuda(item: Any) -> bool:
    return isinstance(item, Tensor) and item.device.type == "cuda"


def _is_traced(item: Any) -> bool:
    """Whether a tensor is fake, functional or the like, and so has no bytes."""
    if not isinstance(item, Tensor):
        return isinstance(item, torch.SymInt)
    plain = type(item) in (Tensor, torch.nn.Parameter)
    return not plain or item.is_meta or is_functional(item)


def _on_cpu(item: Any) -> Any:
    if _on_cuda(item):
        return overlay(item)
    if isinstance(item, torch.device) and item.type == "cuda":
        return torch.device("cpu")
    if isinstance(item, torch.Generator):
        return None  # ours is given in its place
    return item


class Values(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, ops on the dry device compute."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """The op on the dry device, then its values."""
        kwargs = kwargs or {}
        given = tree_flatten((args, kwargs))[0]
        if any(map(_is_traced, given)):
            return func(*args, **kwargs)
        seed = _seed(func, kwargs)  # before the op draws
        out = func(*args, **kwargs)
        outs = tree_flatten(out)[0]
        if any(map(_is_traced, outs)) or not any(map(_on_cuda, (*given, *outs))):
            return out
        returns = schema_of(func).returns
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        if is_view or func.overloadpacket in _MAKES_NOTHING:
            return out
        got = _computed(func, args, kwargs, seed)
        if func.overloadpacket in _SHAPED_BY_VALUES:
            return tree_map(lambda x: _brought(x) if isinstance(x, Tensor) else x, got)
        if not any(isinstance(one, Tensor) for one in outs):
            return got  # a number, read from what the device's kernels would have left
        _write(func, outs, got)
        return out


def _seed(func: Any, kwargs: dict[str, Any]) -> int | None:
    """A seed made of the state of CUDA's generator; ``None`` for an op that does not draw."""
    draws = torch.Tag.nondeterministic_seeded in func.tags or "dropout" in func.__name__
    if not draws and func.overloadpacket not in SUBSTITUTES:
        return None
    generator = kwargs.get("generator")
    if isinstance(generator, torch.Generator):
        if generator.device.type != "cuda":
            return None
        state = generator.get_state()
    else:
        state = torch.cuda.get_rng_state()
    start, offset = state.view(torch.int64).tolist()[:2]
    return int((start * 1_000_003 + offset * 7919) % 2**31)


def _computed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], seed: int | None) -> Any:
    """The result of the CPU's kernel, or of its substitute, on the same bytes."""
    cpu_args, cpu_kwargs = tree_map(_on_cpu, args), tree_map(_on_cpu, dict(kwargs))
    cpu_kwargs.pop("pin_memory", None)
    kernel = SUBSTITUTES.get(func.overloadpacket)
    before = torch.default_generator.get_state()
    try:
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        with torch.no_grad():
            if kernel is not None:
                return kernel(*cpu_args, **cpu_kwargs, seed=seed or 0)
            return func(*cpu_args, **cpu_kwargs)
    except NotImplementedError as error:
        raise UnsupportedError(
            f"the dry device has no values for {func}: the CPU has no such op",
            hint="without --values it runs, and its memory is true",
        ) from error
    finally:
        torch.default_generator.set_state(before)


def _brought(tensor: Tensor) -> Tensor:
    made = torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")
    overlay(made).copy_(tensor)
    return made


def _write(func: Any, outs: list[Any], got: Any) -> None:
    """Write the results where those of the device would be, copies on the host among them.

    What CUDA's op itself copied to the host may have come from a kernel that was not run.
    """
    found = tree_flatten(got, is_leaf=lambda x: x is None)[0]
    for mine, its in zip(outs, found, strict=False):
        if not isinstance(mine, Tensor) or not isinstance(its, Tensor) or not mine.numel():
            continue
        target = overlay(mine)
        if target.data_ptr() == its.data_ptr():
            continue  # in place
        if target.shape == its.shape:
            target.copy_(its)
        elif its.numel() <= target.numel():  # padded on CUDA, as attention's statistics are
            target.flatten()[: its.numel()].copy_(its.flatten())
        else:
            raise UnsupportedError(
                f"the dry device has no values for {func}: {tuple(its.shape)} on the CPU, "
                f"{tuple(mine.shape)} on CUDA",
                hint="without --values it runs, and its memory is true",
            )


_entered: list[Any] = []


def enable() -> None:
    """From now on ops of this thread, and of the backward passes that it starts, compute."""
    if not _entered:
        made: Any = Values
        _entered.append(made())
        _entered[0].__enter__()
