"""Bytes that tensors really hold while a step runs: every storage an op returns, until it dies."""

from __future__ import annotations

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class StorageTracker(TorchDispatchMode):
    """Counts storages as ops return them; what an op allocates and frees inside is not seen.

    Attributes
    ----------
    live_bytes, peak_bytes : int
    num_calls : dict of str to int
        Op -> number of calls, views and all.
    """

    def __init__(self, *resident):
        super().__init__()
        self.live_bytes = self.peak_bytes = 0
        self.num_calls = {}
        self._storages = {}
        for tensor in tree_leaves(resident):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.num_calls[func.name()] = self.num_calls.get(func.name(), 0) + 1
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf)
        return out

    def _add(self, tensor):
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages:
            return
        size = storage.nbytes()

        def forget(_):
            del self._storages[key]
            self.live_bytes -= size

        self._storages[key] = weakref.ref(storage, forget)
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)


def measured_peak(module, inputs, **kwargs):
    """The tracker and the loss of one step of `module` without gradients from before."""
    for parameter in module.parameters():
        parameter.grad = None
    resident = [*module.parameters(), *module.buffers(), inputs, kwargs]
    with StorageTracker(*resident) as tracker:
        loss = module(*inputs, **kwargs)
        loss.backward()
    return tracker, loss.detach()
