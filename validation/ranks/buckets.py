"""The buckets in which DistributedDataParallel averages gradients: memory beside the model's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..torch_private.storage_refs import is_view, storage_key
from .wrappers import wrapper_of


@dataclass(frozen=True)
class Averaging:
    """What the wrapper of a step holds, and what it does in this step.

    Attributes
    ----------
    num_bytes
        Bytes of the buckets: a copy of each gradient.
    holds_gradients
        Whether gradients become views of the buckets when they have been averaged.
    accumulates
        Whether this step averages nothing (``no_sync``), so that gradients stay for later steps.
    """

    num_bytes: int
    holds_gradients: bool
    accumulates: bool

    def bytes_beside(self, *, gradients_resident: bool) -> int:
        """Bytes of the buckets beside those of the gradients.

        Where gradients count from before the step (`gradients_resident`) and are views of the
        buckets, the buckets take no additional bytes. What a step accumulates by itself, before
        any average, are no views.
        """
        if self.holds_gradients and gradients_resident and not self.accumulates:
            return 0
        return self.num_bytes


def averaging(module: nn.Module) -> Averaging | None:
    """The buckets of the wrapper whose step this is; ``None`` outside of a wrapper of `module`."""
    wrapper = wrapper_of(module)
    if wrapper is None:
        return None
    return Averaging(
        sum(p.numel() * p.element_size() for p in _averaged(wrapper)),
        bool(wrapper.gradient_as_bucket_view),
        not wrapper.require_backward_grad_sync,
    )


def bucket_bytes_now(wrapper: DistributedDataParallel) -> int:
    """Bytes of the buckets of `wrapper` that are not gradients at present."""
    averaged = _averaged(wrapper)
    total = sum(p.numel() * p.element_size() for p in averaged)
    if not wrapper.gradient_as_bucket_view:
        return total
    within = {
        storage_key(p.grad): p.grad.untyped_storage().nbytes()
        for p in averaged
        if p.grad is not None and is_view(p.grad)
    }
    return max(0, total - sum(within.values()))


def _averaged(wrapper: Any) -> list[nn.Parameter]:
    ignored = set(getattr(wrapper, "parameters_to_ignore", ()))
    return [
        parameter
        for name, parameter in wrapper.module.named_parameters()
        if parameter.requires_grad and name not in ignored
    ]
