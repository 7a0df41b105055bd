"""Bytes resident in a user's loop from before a step to after it, as far as they can be seen."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ...measure import storage_bytes
from ...measure.allocator import close_waiting
from ...measure.storage import bytes_by_place
from ...process_objects import objects_within
from ...ranks.buckets import bucket_bytes_now
from ...torch_private.graph_tasks import in_backward
from ...torch_private.process_groups import active_wrapper
from ...torch_private.storage_refs import StorageWeakRef, is_gone, storage_key, weakly
from ...whole_step.resident_state import resident_state
from ...whole_step.stepped_optimizers import (
    found_with_state,
    see_states,
    state_changes,
    stepped_optimizers,
)
from ..drop_in_options import DropInOptions
from .closure_steps import bytes_in_step, growing_bytes

_stepping: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
"""Optimizers whose step runs: it may call a closure, with forwards and backwards."""
_in_backward: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
"""Optimizers that have stepped within a backward, as in hooks of their parameters' gradients."""
_STEP_BYTES = 4  # of the count of steps that Adam keeps beside each parameter's averages
_ADAM_COPIES = 2  # of a parameter, for the root of an average and what it is divided by
_PLAIN = (torch.Tensor, nn.Parameter)
_within: set[str] = set()  # ranges of the profiler that began under a record which is closed


def _note(optimizer: torch.optim.Optimizer, _arguments: Any, _keywords: Any) -> None:
    _stepping.discard(optimizer)
    if in_backward():
        _in_backward.add(optimizer)
    _within.clear()


def _close(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    _stepping.add(optimizer)
    # An optimizer may step in a hook of a gradient: a record that is closed there goes on, as
    # backward runs with a copy of the thread's state.
    if not in_backward() and close_waiting():
        _within.add("optimizer.step")


def is_any_stepping() -> bool:
    """Whether the step of an optimizer runs, of any model."""
    return bool(_stepping)


def changes_parameters(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step of `optimizer` may change what it trains: not where it learns at rate zero.

    So ``torch.distributed.checkpoint.state_dict`` has an optimizer make its state, by zeros that
    are no gradients of the loop.
    """
    return any(group.get("lr", 1) != 0 for group in optimizer.param_groups)


def may_record() -> bool:
    """Whether a record may start here that goes on after the caller has returned.

    Not in the closure of an optimizer's step whose range began under another record: where the
    range ends, torch would write to the memory of that record, which is freed.
    """
    return not _within


register_optimizer_step_pre_hook(_close)
register_optimizer_step_post_hook(_note)


class StateBeside(Protocol):
    """What other models with a budget hold in the same memory."""

    def lasting_beside(self) -> int:
        """Bytes of their parameters, buffers and optimizers."""

    def gradients_beside(self) -> int:
        """Bytes of their gradients at present."""

    def places_beside(self) -> set[int]:
        """The addresses of their parameters, buffers, gradients and states of optimizers."""


class HeldState:
    """Bytes of parameters, buffers, gradients and optimizers of the parts seen so far.

    Optimizers are seen at their first step, wherever they are created, and before it where the loop
    has loaded their state.

    Attributes
    ----------
    beside : StateBeside or None
        Tells what other models with a budget hold, which is resident here.
    in_front_bytes
        What the loop holds besides in front of the present step, as far as it was looked for.
    """

    def __init__(self, options: DropInOptions) -> None:
        self._options = options
        self.beside: StateBeside | None = None
        self.in_front_bytes = 0
        self._tensors: dict[int, _Known] = {}
        self._fixed_bytes = 0
        self._foreseen_bytes = 0
        self._counted: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Counted]
        self._counted = weakref.WeakKeyDictionary()
        self._wrappers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._looked_at: weakref.WeakKeyDictionary[torch.optim.Optimizer, int]
        self._looked_at = weakref.WeakKeyDictionary()
        self._has_looked = False
        self._last_gradients: dict[int, StorageWeakRef] = {}

    def see(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count `tensors`, parameters and buffers, from now on, and the buckets of a wrapper."""
        wrapper = active_wrapper()
        if wrapper is not None:
            self._wrappers.add(wrapper)
        knows, new, has_moved = self._tensors.get, list[torch.Tensor](), False
        for t in tensors:  # each step asks for every parameter: without a call of our own for each
            if (
                (it := knows(id(t))) is None
                or it.tensor() is not t  # that one is gone, and `t` stands in its place
                or it.dtype is not t.dtype
                or it.shape != t.shape
            ):
                new.append(t)
            elif it.place is not None and it.place != t.data_ptr():
                has_moved = True
        if not new and not has_moved:
            return
        alive = list({id(t): t for t in (*self._alive(), *new)}.values())
        self._tensors = {id(t): _Known.of(t) for t in alive}
        self._fixed_bytes = storage_bytes(alive)
        if not new:
            return
        self._counted.clear()  # an optimizer of what is new has stepped, perhaps
        if self._options.optimizer is not None:
            holder = nn.Module()
            for i, tensor in enumerate(alive):
                if isinstance(tensor, nn.Parameter):
                    holder.register_parameter(str(i), tensor)
            state = resident_state(holder, self._options.optimizer)
            self._foreseen_bytes = state.optimizer_bytes

    def look_for_optimizers(self) -> None:
        """A step begins: count what optimizers of these parts hold before they step.

        That is a state that none of their steps has made, as of a run that goes on from a
        checkpoint, and parameters that no graph reads, as of an embedding behind a graph break.
        Wrappers that pass on the state of another optimizer have none of their own. O(objects of
        the process), once; then O(parameters of an optimizer) when it has stepped.
        """
        if not self._has_looked:
            self._has_looked = True
            # Those that are not made whole yet, as in a constructor, have no groups.
            for optimizer in objects_within(torch.optim.Optimizer):
                if "param_groups" not in vars(optimizer) or self.device_of(optimizer) is None:
                    continue
                self._see_trained(optimizer)
                if vars(optimizer).get("state"):
                    found_with_state(optimizer)
        see_states()
        for optimizer, num_steps in state_changes():
            if self._looked_at.get(optimizer) != num_steps:
                self._looked_at[optimizer] = num_steps
                self._see_trained(optimizer)

    def _see_trained(self, optimizer: torch.optim.Optimizer) -> None:
        device = self.device_of(optimizer)
        if device is not None:
            trained = (t for group in optimizer.param_groups for t in group["params"])
            self.see(t for t in trained if t.device == device)

    def _alive(self) -> list[torch.Tensor]:
        return [t for it in self._tensors.values() if (t := it[0]()) is not None]

    @property
    def device(self) -> torch.device | None:
        """Where they are; ``None`` where none is there."""
        tensors = (it.tensor() for it in self._tensors.values())
        return next((t.device for t in tensors if t is not None), None)

    @property
    def places(self) -> set[int]:
        """The addresses of the parameters and buffers."""
        return set(self.fixed_by_place())

    def fixed_by_place(self) -> dict[int, int]:
        """Bytes of the parameters and buffers that are there, by their addresses."""
        return bytes_by_place(self._alive())

    def present_gradients(self) -> list[torch.Tensor]:
        """The gradients at present."""
        return [it for t in self._alive() if t.is_leaf and (it := t.grad) is not None]

    def dropped_gradients(self) -> list[int]:
        """A step begins: the keys of storages of gradients that are there and are none any more.

        As of a flat buffer of which they were views, and which the loop keeps without them.
        """
        plain = (it for it in self.present_gradients() if it.layout is torch.strided)
        now = {storage_key(it): weakly(it) for it in plain if type(it) in _PLAIN}
        before, self._last_gradients = self._last_gradients, now
        return [it for it, ref in before.items() if it not in now and not is_gone(ref)]

    def gradients(self) -> dict[int, int]:
        """Bytes of the gradients at present, by their addresses."""
        return bytes_by_place(self.present_gradients())

    def own_places(self) -> set[int]:
        """The addresses of parameters, buffers, gradients and states of optimizers."""
        own = [it for it in stepped_optimizers() if any(map(self.knows, it.state))]
        states = bytes_by_place([dict(it.state) for it in own])
        return {*self.fixed_by_place(), *self.gradients(), *states}

    def counted_places(self) -> set[int]:
        """The addresses of all that counts so, here or beside."""
        beside = set() if self.beside is None else self.beside.places_beside()
        return self.own_places() | beside

    def _lasting_beside(self) -> int:
        return 0 if self.beside is None else self.beside.lasting_beside()

    def _gradients_beside(self) -> int:
        return 0 if self.beside is None else self.beside.gradients_beside()

    @property
    def total_bytes(self) -> int:
        """All of these bytes, at present, and what other models hold."""
        # Gradients may be views of buckets, which then count once, and whole.
        gradients = self.present_gradients()
        buckets = sum(map(bucket_bytes_now, self._wrappers))
        own = self.lasting_bytes + storage_bytes(gradients) + buckets
        return own + self._gradients_beside()

    @property
    def present_bytes(self) -> int:
        """All that is there, without the states of optimizers that are only foreseen."""
        foreseen = max(0, self._foreseen_bytes - self._optimizer_bytes())
        return self.total_bytes + self.in_front_bytes - foreseen

    @property
    def lasting_bytes(self) -> int:
        """Bytes of parameters, buffers and optimizers, which no step takes away."""
        optimizers = max(self._foreseen_bytes, self._optimizer_bytes())
        own = self._fixed_bytes + optimizers + self._in_steps_bytes()
        return own + self._options.extra_bytes + self._lasting_beside()

    def _in_steps_bytes(self) -> int:
        """Bytes of optimizers whose closure runs, beyond the states that are counted."""
        total = 0
        for optimizer in list(_stepping):
            if self.device_of(optimizer) is not None:
                known = self._counted.get(optimizer)
                counted = known.total_bytes if known is not None else 0
                total += max(0, bytes_in_step(optimizer) - counted)
        return total

    @property
    def is_stepping(self) -> bool:
        """Whether a step of an optimizer runs that is known to hold something for its closure."""
        return any(bytes_in_step(it) for it in list(_stepping) if self.device_of(it) is not None)

    @property
    def growing_bytes(self) -> int:
        """Bytes by which optimizers may still grow, as L-BFGS."""
        known = [it for it in (*stepped_optimizers(), *_stepping) if self.device_of(it) is not None]
        return sum(growing_bytes(it) for it in dict.fromkeys(known))

    def device_of(self, optimizer: torch.optim.Optimizer) -> torch.device | None:
        """Where `optimizer` trains what is counted here; ``None`` if it trains other parameters."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if self.knows(parameter):
                    return torch.device(parameter.device)
        return None

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` is counted here, and not in the place of one that is gone."""
        known = self._tensors.get(id(tensor))
        return known is not None and known.tensor() is tensor

    def has_gradient_for(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether a gradient is there by which `optimizer` trains what is counted here."""
        return bool(self.gradients_for(optimizer))

    def gradients_for(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        """The gradients by which `optimizer` trains what is counted here."""
        parameters = (it for group in optimizer.param_groups for it in group["params"])
        counted = (it for it in parameters if self.knows(it) and it.is_leaf)
        return [it.grad for it in counted if it.grad is not None]

    def never_stepped(self) -> list[torch.Tensor]:
        """All that takes gradients here and that no optimizer has stepped.

        A loop may have several optimizers, as of a generator and a critic, one of which steps
        first. Not what each graph trains: one graph may run with the parameters of many layers.
        """
        # L-BFGS calls the model in its first step: what it will hold is `growing_bytes`.
        known = [*stepped_optimizers(), *(it for it in _stepping if growing_bytes(it))]
        groups = [group for optimizer in known for group in optimizer.param_groups]
        stepped = {id(parameter) for group in groups for parameter in group["params"]}
        return [t for t in self._trained() if id(t) not in stepped]

    def adam_bytes(self) -> int:
        """Bytes of the states of Adam for what no optimizer has stepped."""
        return adam_bytes_of(self.never_stepped())

    def coming_gradient_bytes(self) -> int:
        """Bytes of the gradients of all that takes some here and has none at present."""
        return storage_bytes([t for t in self._trained() if t.grad is None])

    def late_gradient_bytes(self) -> int:
        """Those of them that the loop will hold through forwards, as it holds others at present.

        As of an actor and a critic in turn, each of whose gradients are zeroed before its own
        backward only.
        """
        holds = any(t.grad is not None for t in self._trained())
        return self.coming_gradient_bytes() if holds else 0

    def adam_step_bytes(self) -> int:
        """Bytes that are there in a step of Adam, with its states as they are or will be.

        Beside these it makes copies of one parameter, or of all where torch takes all at once.
        """
        trained = self._trained()
        states = self._optimizer_bytes() + self.adam_bytes()
        resident = self._fixed_bytes + self._options.extra_bytes
        resident += self._lasting_beside() + self._gradients_beside()
        return resident + storage_bytes(trained) + states + self._adam_copies(trained)

    def _trained(self) -> list[torch.Tensor]:
        return [t for t in self._alive() if t.is_leaf and t.requires_grad]

    def _adam_copies(self, trained: list[torch.Tensor]) -> int:
        own = [it for it in stepped_optimizers() if self.device_of(it) is not None]
        if any(it.defaults.get("fused") for it in own):
            return 0
        sizes = [t.nbytes for t in trained]
        is_cuda = any(t.is_cuda for t in trained)
        return sum(sizes) if is_cuda else _ADAM_COPIES * max(sizes, default=0)

    @property
    def made_bytes(self) -> int:
        """Bytes of optimizers that were not foreseen."""
        return max(0, self._optimizer_bytes() - self._foreseen_bytes)

    def _optimizer_bytes(self) -> int:
        return sum(self.optimizers().values())

    @property
    def in_backward_bytes(self) -> int:
        """Bytes of the states of those optimizers that step within backwards."""
        ids = {id(optimizer) for optimizer in list(_in_backward)}
        return sum(size for it, size in self.optimizers().items() if it in ids) if ids else 0

    def optimizers(self) -> dict[int, int]:
        """Bytes of the states of optimizers that train what is counted here, by the id of each."""
        found_bytes: dict[int, int] = {}
        for optimizer, num_steps in state_changes():
            known = self._counted.get(optimizer)
            if known is None or known.num_steps != num_steps:
                own = any(self.knows(p) for p in optimizer.state)
                named = _named_bytes(optimizer) if own else 0
                if known is None or known.named_bytes != named:
                    found = storage_bytes(dict(optimizer.state)) if own else 0
                else:
                    found = known.total_bytes
                known = self._counted[optimizer] = _Counted(num_steps, named, found)
            if known.total_bytes:
                found_bytes[id(optimizer)] = known.total_bytes
        return found_bytes


class _Known(NamedTuple):
    """A tensor that is counted as it was; conversions replace the data of a parameter.

    Attributes
    ----------
    place
        Its address: tied weights may be given storages of their own. ``None`` where it has none.
    """

    tensor: weakref.ref[torch.Tensor]
    shape: torch.Size
    dtype: torch.dtype
    place: int | None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Known:
        """`tensor` as it is now."""
        is_plain = type(tensor) in _PLAIN and tensor.layout is torch.strided
        place = tensor.data_ptr() if is_plain else None
        return cls(weakref.ref(tensor), tensor.shape, tensor.dtype, place)


class _Counted(NamedTuple):
    """The bytes of an optimizer's state after so many steps.

    Attributes
    ----------
    named_bytes
        Bytes by `_named_bytes`: while these stay, so does the total.
    """

    num_steps: int
    named_bytes: int
    total_bytes: int


def adam_bytes_of(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes of the states of Adam for these `tensors`, of which it has none yet."""
    return 2 * storage_bytes(tensors) + _STEP_BYTES * len(tensors)


def _named_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the tensors that stand in the state itself or in its lists. O(tensors), quick."""
    total = 0
    for entries in optimizer.state.values():
        for entry in entries.values() if isinstance(entries, dict) else [entries]:
            for value in entry if isinstance(entry, list | tuple | deque) else [entry]:
                if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                    total += value.nbytes
    return total
