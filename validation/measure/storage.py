"""Exact bytes of tensors: every storage that an op makes, from its allocation to its end.

The tracker sees what ops return. It sees neither what a kernel allocates for itself while it runs
nor an allocator's rounding; `allocator` and `cuda` see these.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..torch_private.op_modes import TorchDispatchMode, chosen_branch
from ..torch_private.pytrees import tree_leaves
from ..torch_private.storage_refs import key_of, share_of, strided_parts

_PLAIN = (Tensor, torch.nn.Parameter)

COMPOSITES: dict[Any, Callable[..., Any]] = {}
"""Ops of this package -> the Python function behind the op, whose own ops are counted, too."""


def storage_bytes(tensors: Any) -> int:
    """Bytes of the distinct storages under all tensors in the tree `tensors`.

    Examples
    --------
    >>> import torch
    >>> x = torch.zeros(10)
    >>> storage_bytes([x, x[:5], torch.zeros(1)])
    44
    """
    found = {key_of(s): s.nbytes() for s in storages(tensors)}
    return sum(found.values())


def bytes_by_place(tensors: Any) -> dict[int, int]:
    """Address -> bytes of the distinct storages under all tensors in the tree `tensors`."""
    return {s.data_ptr(): s.nbytes() for s in storages(tensors)}


def storages(tensors: Any) -> Iterator[torch.UntypedStorage]:
    """The storages under all tensors in the tree `tensors`; a shared storage comes several times.

    For a tensor that is sharded over ranks, it is this rank's storage; for a sparse one, it is
    those of its indices and values.
    """
    for item in tensors if type(tensors) is list else (tensors,):
        if type(item) in _PLAIN:  # nearly all that steps ask for, and tree_leaves is slow
            for tensor in strided_parts(item):
                yield tensor.untyped_storage()
            continue
        for leaf in tree_leaves(item):
            if isinstance(leaf, Tensor):
                for tensor in strided_parts(local(leaf)):
                    yield tensor.untyped_storage()


def local(tensor: Tensor) -> Tensor:
    """`tensor`, or this rank's share of a tensor that is sharded over ranks."""
    return share_of(tensor)


@dataclass(slots=True)
class Peak:
    """The most bytes alive since a mark, and the kinds of these bytes.

    Attributes
    ----------
    total_bytes : int
    by_kind : dict
        Kind -> bytes, of storages that had a kind before the mark.
    fresh : tuple of int
        Keys of storages made since the mark and alive at the peak.
    """

    total_bytes: int
    by_kind: dict[str, int] = field(default_factory=dict)
    fresh: tuple[int, ...] = ()


class StorageTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of live storages while it is entered, backward included.

    Storages that existed before are counted only where `add` names them; the ends of these are
    seen, too. Kinds are labels for what is alive at a peak.

    Attributes
    ----------
    live_bytes : int
        Bytes of live storages now.
    num_ops : int
        Ops seen.

    Examples
    --------
    >>> import torch
    >>> with StorageTracker() as tracker:
    ...     x = torch.zeros(1000) + 1
    >>> tracker.live_bytes, tracker.peak.total_bytes
    (4000, 8000)
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live_bytes = 0
        self.num_ops = 0
        self.peak = Peak(0)
        self._sizes: dict[int, int] = {}
        self._foreign: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._kinds: dict[int, str] = {}
        self._by_kind: dict[str, int] = {}
        self._fresh: dict[int, None] = {}
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.on_op: Callable[[Any], None] | None = None

    def add(self, tensors: Any, kind: str) -> None:
        """Count the storages under `tensors` that are not counted yet, and label them `kind`."""
        for storage in storages(tensors):
            self._foreign.pop(key_of(storage), None)
            self._meet(storage)
            self._label(key_of(storage), kind)
        self._raise_peak()

    def mark(self) -> None:
        """Start a new peak: storages alive now are no longer fresh."""
        for key in self._fresh:
            self._label(key, "other")
        self._fresh.clear()
        self.peak = Peak(self.live_bytes, dict(self._by_kind))

    def label_fresh(self, kind: str) -> None:
        """Give `kind` to every live storage made since the mark that has none."""
        for key in tuple(self._fresh):
            self._label(key, kind)

    def kinds_at_peak(self) -> dict[str, int]:
        """Bytes by kind at the peak; storages made and freed since the mark are workspace."""
        kinds = dict(self.peak.by_kind)
        known = 0
        for key in self.peak.fresh:
            if key in self._sizes:
                kind = self._kinds.get(key, "other")
                kinds[kind] = kinds.get(kind, 0) + self._sizes[key]
                known += self._sizes[key]
        kinds["workspace"] = kinds.get("workspace", 0) + self.peak.total_bytes - sum(kinds.values())
        return {kind: size for kind, size in kinds.items() if size}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the op, then count what it returns."""
        if self.on_op is not None:
            self.on_op(func)
        for argument in (*args, *kwargs.values()) if kwargs else args:
            self._meet_argument(argument)
        composite = COMPOSITES.get(func)
        if composite is not None:
            with self:
                return composite(*args, **(kwargs or {}))
        branch = chosen_branch(func, args)
        if branch is not None:
            with self:
                return branch()
        out = func(*args, **(kwargs or {}))
        self.num_ops += 1
        if isinstance(out, Tensor):  # by far the most common case, and tree_leaves is slow
            self._meet(local(out).untyped_storage())
        else:
            for storage in storages(out):
                self._meet(storage)
        self._raise_peak()
        return out

    def _meet_argument(self, argument: Any) -> None:
        """Count a storage that an op reads and no op has made: it existed before."""
        if isinstance(argument, Tensor):
            storage = local(argument).untyped_storage()
            key = key_of(storage)
            if key not in self._sizes and key not in self._foreign:
                self._foreign[key] = weakref.ref(storage, self._forgetter(self._foreign, key))
        elif isinstance(argument, list | tuple):
            for item in argument:
                self._meet_argument(item)

    @staticmethod
    def _forgetter(table: dict[int, Any], key: int) -> Callable[[Any], None]:
        return lambda _: table.pop(key, None)

    def _meet(self, storage: torch.UntypedStorage) -> None:
        key, size = key_of(storage), storage.nbytes()
        known = self._sizes.get(key)
        if known == size or key in self._foreign:
            return
        if known is not None:  # the storage was resized
            self._change(key, size - known)
            self._sizes[key] = size
            return
        self._sizes[key] = size
        self._fresh[key] = None

        def forget(_: Any) -> None:
            self._forget(key)

        self._references[key] = weakref.ref(storage, forget)
        self.live_bytes += size

    def _change(self, key: int, difference: int) -> None:
        self.live_bytes += difference
        kind = self._kinds.get(key)
        if kind is not None:
            self._by_kind[kind] += difference

    def _forget(self, key: int) -> None:
        self._change(key, -self._sizes[key])
        del self._sizes[key], self._references[key]
        self._kinds.pop(key, None)
        self._fresh.pop(key, None)

    def _label(self, key: int, kind: str) -> None:
        if key in self._kinds:
            return
        self._kinds[key] = kind
        self._by_kind[kind] = self._by_kind.get(kind, 0) + self._sizes[key]

    def _raise_peak(self) -> None:
        if self.live_bytes > self.peak.total_bytes:
            fresh = tuple(key for key in self._fresh if key not in self._kinds)
            self.peak = Peak(self.live_bytes, dict(self._by_kind), fresh)
