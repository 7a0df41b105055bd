"""Which op made each storage of a step, which op reads it in backward, and how long it lives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..capture.naming import short_op_name
from ..capture.skeleton import Skeleton
from ..measure.storage import StorageTracker, local
from ..torch_private.autograd_nodes import current_node_number, sequence_number
from ..torch_private.op_modes import schema_name
from ..torch_private.pytrees import tree_leaves
from ..torch_private.storage_refs import key_of, storage_key


@dataclass(slots=True)
class Life:
    """The life of a storage.

    Attributes
    ----------
    name
        Name of the op that made it, after the module that the op belongs to.
    born, died
        Moments of the tracker's clock; ``died`` is -1 if the storage outlives the tracker.
    reader
        The first backward op that reads the storage, or empty.
    held
        ``"static"`` or ``"input"`` for a storage from before the step, else empty.
    """

    name: str
    size_bytes: int
    born: int
    died: int = -1
    reader: str = ""
    held: str = ""


class LifetimeTracker(StorageTracker):  # type: ignore[no-untyped-call]  # torch's modes are untyped
    """A `StorageTracker` that keeps the names and the lives of storages.

    Its clock counts ops, so that equal steps give equal lives. Op names are
    ``layers.3.attn.softmax`` in the forward pass, ``grad.layers.3.attn.softmax`` in the backward
    pass, and ``recompute.layers.3.attn.softmax`` of what the backward pass runs again.

    Attributes
    ----------
    lives : list of Life
        Lives of all storages met, in the order in which they were made.
    peak_moment : int
    peak_op : str
        The op after which the most bytes are alive.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lives: list[Life] = []
        self.peak_moment = 0
        self.peak_op = ""
        self.in_backward = False
        self.op_name = ""  # name of the running op, where the caller knows a better one
        self._now = 0
        self._current = ""
        self._open: dict[int, Life] = {}
        self._modules: list[str] = [""]
        self._by_node: dict[int, str] = {}
        self._counts: dict[str, int] = {}

    # -- what the step tells ----------------------------------------------------------------------

    def hold(self, tensor: Tensor, name: str, held: str) -> None:
        """Count a tensor from before the step, under a name of its own."""
        self._current = name
        self.add([tensor], held)
        self._open[storage_key(local(tensor))].held = held

    def life_of(self, tensor: Tensor) -> Life:
        """The life of the storage under `tensor`, which is alive."""
        return self._open[storage_key(local(tensor))]

    def now(self) -> int:
        """The present moment; every later op comes after it."""
        return self._now

    def alive(self, moment: int) -> list[Life]:
        """The storages alive at `moment`. O(storages)."""
        return [one for one in self.lives if one.born <= moment and not 0 <= one.died < moment]

    @contextlib.contextmanager
    def following(self, module: nn.Module) -> Iterator[None]:
        """Follow which submodule of `module` runs, recomputation in the backward pass included."""
        handles = []
        for path, one in module.named_modules():

            def enter(_module: nn.Module, _inputs: Any, *, path: str = path) -> None:
                self._modules.append(path)

            def leave(_module: nn.Module, _inputs: Any, _output: Any) -> None:
                if len(self._modules) > 1:
                    self._modules.pop()

            handles.append(one.register_forward_pre_hook(enter))
            handles.append(one.register_forward_hook(leave, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    # -- what is seen -----------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Name the op, note what it reads, then count what it returns."""
        if func is torch.ops.prim.device.default:
            return func(*args, **(kwargs or {}))
        self._now += 1
        name, recomputed = self._name(func)
        self._current = name
        if self.in_backward and not recomputed:
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, Tensor):
                    life = self._open.get(storage_key(local(leaf)))
                    if life is not None and not life.reader:
                        life.reader = name
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _name(self, func: Any) -> tuple[str, bool]:
        """The name of the op that runs now, and whether the backward pass repeats it."""
        if self.op_name:
            return self.op_name, False
        short = short_op_name(schema_name(func).partition("::")[2])
        path = self._modules[-1]
        own = f"{path}.{short}" if path else short
        if not self.in_backward:
            self._by_node.setdefault(sequence_number() - 1, own)
            return own, False
        if torch.is_grad_enabled():
            self._by_node.setdefault(sequence_number() - 1, own)
            return f"recompute.{own}", True
        node = current_node_number()
        return f"grad.{self._by_node.get(node, own)}", False

    def _meet(self, storage: torch.UntypedStorage) -> None:
        key = key_of(storage)
        known = key in self._sizes
        super()._meet(storage)
        if key not in self._sizes:
            return
        if known:
            self._open[key].size_bytes = self._sizes[key]
            return
        count = self._counts[self._current] = self._counts.get(self._current, 0) + 1
        name = self._current if count == 1 else f"{self._current}#{count}"
        life = Life(name, self._sizes[key], self._now)
        self._open[key] = life
        self.lives.append(life)

    def _forget(self, key: int) -> None:
        super()._forget(key)
        self._open.pop(key).died = self._now

    def _raise_peak(self) -> None:
        self._now += 1  # a storage that died while the op ran is not alive after it
        before = self.peak.total_bytes
        super()._raise_peak()
        if self.peak.total_bytes > before:
            self.peak_moment, self.peak_op = self._now, self._current


def hold_state(skeleton: Skeleton, tracker: LifetimeTracker) -> None:
    """Count parameters, buffers and inputs, which exist before the step."""
    own = skeleton.step
    for named in (own.named_parameters, own.named_buffers):
        for name, tensor in named():
            tracker.hold(tensor, name.removeprefix("model."), "static")
    for position, tensor in enumerate(skeleton.tensors):
        tracker.hold(tensor, f"input{position}", "input")
