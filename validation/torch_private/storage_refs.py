"""Which tensors share memory, how long it lives, and who wrote to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef as StorageWeakRef


def key_of(storage: torch.UntypedStorage) -> int:
    """A number that two handles of one storage share, as long as either lives."""
    return int(storage._cdata)


def storage_key(tensor: Tensor) -> int:
    """A number that two tensors share where they share storage, as long as either lives.

    Of a tensor that is spread over ranks, it is that of this rank's share.
    """
    return int(share_of(tensor).untyped_storage()._cdata)


def strided_parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """`tensor`, or the indices and values of which a sparse one is made.

    Nothing for what has no storage: a zero that stands for a tangent, a tensor within a transform
    of `torch.func`, or one in the form of a library.
    """
    if tensor.layout is torch.strided:
        lacks = tensor._is_zerotensor() or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        return () if lacks else (tensor,)
    if tensor.layout is torch._mkldnn:  # type: ignore[attr-defined]  # not in the stub
        return ()
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)


def weakly(tensor: Tensor) -> StorageWeakRef:
    """A reference to the storage of `tensor` that does not hold it, whoever else does."""
    return storage_weakly(share_of(tensor).untyped_storage())


def storage_weakly(storage: torch.UntypedStorage) -> StorageWeakRef:
    """A reference to `storage` that does not hold it."""
    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # torch's


def is_gone(reference: StorageWeakRef) -> bool:
    """Whether nobody holds the storage any more."""
    return bool(reference.expired())  # type: ignore[no-untyped-call]  # torch's


reinterpreted: Callable[[Tensor, Sequence[int], Sequence[int], int], Tensor] = (
    torch._C._dynamo.guards._reinterpret_tensor  # type: ignore[attr-defined]  # not in the stub
)
"""A tensor's storage, seen with a size and strides from so many elements after its offset.

As inductor's own code takes views: without the dispatcher, and unknown to autograd.
"""


def num_holders(tensor: Tensor) -> int:
    """How many references hold the storage of `tensor`, those of C++ included."""
    storage = tensor.untyped_storage()  # a handle, which is counted as well
    return int(torch._C._storage_Use_Count(storage._cdata))


def is_view(tensor: Tensor) -> bool:
    """Whether autograd knows `tensor` as a view of another one."""
    return bool(tensor._is_view())


def version_of(tensor: Tensor) -> int:
    """How often `tensor`, or a view of it, was written in place."""
    return int(tensor._version)


@contextmanager
def unseen_writes(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Let writes to `tensors` not count: they end as they began, and nobody need know."""
    given: Any = tuple(tensors)
    with torch.autograd._unsafe_preserve_version_counter(given):  # type: ignore[attr-defined]
        yield


def share_of(tensor: Tensor) -> Tensor:
    """`tensor`, or this rank's share of one that is spread over ranks."""
    share = getattr(tensor, "_local_tensor", None)
    return share if isinstance(share, Tensor) else tensor


def is_spread_over_ranks(tensor: Any) -> bool:
    """Whether this rank holds a share of `tensor`."""
    return isinstance(tensor, Tensor) and share_of(tensor) is not tensor


def spread_as(tensor: Tensor) -> Callable[[Tensor], Tensor]:
    """A function that makes a tensor spread over ranks as `tensor` is, of this rank's share."""
    given: Any = tensor.detach()
    names, how = given.__tensor_flatten__()
    rest = {name: getattr(given, name) for name in names if name != "_local_tensor"}
    make, size, stride = type(given).__tensor_unflatten__, given.size(), given.stride()
    return lambda share: make({"_local_tensor": share, **rest}, how, size, stride)


class DataPlaces:
    """Where the data of `tensors` lies, to be found again after code that may replace it.

    An assignment to ``tensor.data`` leaves the object and its version as they were; an op that
    writes to a tensor may enlarge it, where it lies.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = {id(t): t for t in tensors if type(t) in (Tensor, torch.nn.Parameter)}
        self._data = {
            key: tensor.data
            for key, tensor in self._tensors.items()
            if tensor.layout is torch.strided and not tensor.is_nested
        }

    def moved(self) -> list[Tensor]:
        """The tensors whose data lies elsewhere now."""
        return [
            self._tensors[key]
            for key, data in self._data.items()
            if storage_key(data) != storage_key(self._tensors[key])
        ]

    def resized(self) -> list[Tensor]:
        """The tensors that have another size or other strides now."""
        return [
            self._tensors[key]
            for key, data in self._data.items()
            if _layout(data) != _layout(self._tensors[key])
        ]

    def restore(self) -> None:
        """Give the tensors the data, the size and the strides back that they had."""
        for tensor in (*self.moved(), *self.resized()):
            tensor.data = self._data[id(tensor)]


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset()
