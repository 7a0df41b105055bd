"""Running a forward again as if for the first time: random numbers, buffers, autocast.

A repeat must not draw new random numbers, move running statistics a second time, or leave any
buffer other than it found it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..dry_cuda import has_values
from ..guards.recording import python_generators, restore_python_generators
from ..guards.saved_elsewhere import copied_aside, copied_elsewhere
from ..torch_private.module_tables import AnyBatchNorm, buffers_of
from ..torch_private.parametrization_cache import own_cached_weights
from ..torch_private.storage_refs import DataPlaces, share_of, unseen_writes

Source = str | torch.Generator
"""A device, for its default generator; `PYTHON`; or a generator of a module's own."""


def generators(model: nn.Module) -> tuple[Source, ...]:
    """Whose random numbers `model` may draw: of the CPU, of its tensors' devices, of its own."""
    devices = {str(p.device) for p in model.parameters() if p.device.type == "cuda"}
    held = [one for m in model.modules() for one in vars(m).values()]
    own = {id(one): one for one in held if isinstance(one, torch.Generator)}
    return ("cpu", *sorted(devices), *own.values())


PYTHON = "python"
"""Stands among devices for the default generators of Python and NumPy."""


@dataclass(frozen=True)
class RandomState:
    """States of the default generators of some devices, of Python's, and of modules' own."""

    states: tuple[tuple[Source, Any], ...]

    @classmethod
    def now(cls, devices: Sequence[Source]) -> RandomState:
        """The present states."""
        return cls(tuple((device, _get_state(device)) for device in devices))

    def restore(self) -> None:
        """Set the generators to these states."""
        for device, state in self.states:
            if isinstance(device, torch.Generator):
                device.set_state(torch.from_numpy(state))
            elif device == PYTHON:
                restore_python_generators(state)
            elif device == "cpu":
                torch.set_rng_state(torch.from_numpy(state))
            else:
                torch.cuda.set_rng_state(state, device)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RandomState):
            return NotImplemented
        pairs = zip(self.states, other.states, strict=True)
        return all(a == b and _same_state(a, s, t) for (a, s), (b, t) in pairs)

    __hash__ = None  # type: ignore[assignment]


def _same_state(device: Source, one: Any, two: Any) -> bool:
    if isinstance(device, torch.Generator):
        return bool(np.array_equal(one, two))
    if device == PYTHON:
        same_numpy = all(np.array_equal(a, b) for a, b in zip(one[1], two[1], strict=True))
        return bool(one[0] == two[0] and same_numpy)
    return bool(np.array_equal(one, two) if device == "cpu" else torch.equal(one, two))


def _get_state(device: Source) -> Any:
    if isinstance(device, torch.Generator):
        return device.get_state().numpy().copy()
    if device == PYTHON:
        return python_generators()
    if device == "cpu":  # a copy that torch's allocator does not hold, among activations
        return torch.get_rng_state().numpy().copy()
    return torch.cuda.get_rng_state(device)


@contextmanager
def frozen_statistics(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Make batch norms in training below `modules` normalise without moving their statistics.

    In training their output depends only on the batch, so that it is equal to the bit.
    """
    found = {
        module
        for root in modules
        for module in root.modules()
        if isinstance(module, AnyBatchNorm) and module.training and module.track_running_stats
    }
    try:
        for module in found:
            module.track_running_stats = False
        yield
    finally:
        for module in found:
            module.track_running_stats = True


Buffers = list[tuple[nn.Module, str, Tensor]]


def other_buffers(modules: Iterable[nn.Module]) -> Buffers:
    """The buffers below `modules`, statistics of batch norms excepted."""
    found: Buffers = []
    seen: set[int] = set()
    for root in modules:
        for module in root.modules():
            if id(module) in seen or isinstance(module, AnyBatchNorm):
                continue
            seen.add(id(module))
            for name, buffer in buffers_of(module).items():
                if buffer is not None:
                    found.append((module, name, buffer))
    return found


def changed_buffers(before: Buffers) -> list[tuple[nn.Module, str]]:
    """The buffers of `before` (module, name, copy) whose values have changed since."""
    return [
        (module, name)
        for module, name, copy in before
        if (now := buffers_of(module)[name]) is None or not same_values(now, copy)
    ]


def same_values(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors are equal to the bit, with NaNs in the same places."""
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    if not has_values(one.device):
        return True
    one, two = share_of(one), share_of(two)
    return torch.equal(one.nan_to_num(), two.nan_to_num())


def nearly_equal(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors of one shape are equal up to rounding."""
    if not has_values(one.device):
        return True
    one, two = share_of(one), share_of(two)
    if not one.is_floating_point():
        return torch.equal(one, two)
    return torch.allclose(one.float(), two.float(), rtol=1e-2, atol=1e-4, equal_nan=True)


def copies(buffers: Buffers) -> Buffers:
    """The same buffers with copies of their values."""
    return [(module, name, buffer.clone()) for module, name, buffer in buffers]


@contextmanager
def replaced_buffers(snapshot: Buffers) -> Iterator[None]:
    """Run the block with copies of `snapshot` in place of the buffers, then restore the buffers."""
    kept = [(module, name, buffers_of(module)[name]) for module, name, _ in snapshot]
    try:
        for module, name, value in snapshot:
            buffers_of(module)[name] = value.clone()
        yield
    finally:
        for module, name, buffer in kept:
            buffers_of(module)[name] = buffer


@contextmanager
def untouched(model: nn.Module, loss: Any = None) -> Iterator[None]:
    """Restore the buffers of `model` and `loss`, and the random numbers, after the block.

    Generators that modules hold as attributes are among these.
    Copies wait on the host, or from a CPU in a file: they take none of the model's memory.
    """
    state = RandomState.now((*generators(model), PYTHON))
    roots = [model, loss] if isinstance(loss, nn.Module) else [model]
    ends = ExitStack()
    copied = ends.enter_context(copied_elsewhere())
    saved = [
        (module, name, buffer, _set_aside(buffer, copied))
        for root in roots
        for module in root.modules()
        for name, buffer in buffers_of(module).items()
        if buffer is not None
    ]
    buffers = [buffer for _, _, buffer, _ in saved]
    places = DataPlaces(buffers)
    # They end as they began: an earlier forward that saved one for its backward need not know.
    ends.enter_context(unseen_writes(buffers))
    ends.enter_context(own_cached_weights())
    held = [
        (value, value.get_state())
        for root in roots
        for module in root.modules()
        for value in vars(module).values()
        if isinstance(value, torch.Generator)
    ]
    try:
        yield
    finally:
        places.restore()
        with torch.no_grad():
            for module, name, buffer, value in saved:
                buffer.copy_(value)
                buffers_of(module)[name] = buffer
        for generator, own in held:
            generator.set_state(own)
        state.restore()
        ends.close()


def _set_aside(buffer: Tensor, copied: Callable[[Tensor], Tensor]) -> Tensor:
    on_cpu = buffer.device.type == "cpu"
    return copied_aside(buffer, copied) if on_cpu else buffer.to("cpu", copy=True)
