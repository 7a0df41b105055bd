"""The buckets in which DistributedDataParallel averages gradients: memory beside the model's."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..torch_private.process_groups import active_wrapper


def bucket_bytes(module: nn.Module, *, gradients_resident: bool) -> int | None:
    """Bytes of the buckets of the wrapper whose step this is; ``None`` outside of a wrapper.

    A bucket holds a copy of each gradient. Where gradients are views of the buckets and count from
    before the step (`gradients_resident`), the buckets take no additional bytes.
    """
    wrapper: Any = active_wrapper()
    if wrapper is None or getattr(wrapper, "module", None) is not module:
        return None
    if wrapper.gradient_as_bucket_view and gradients_resident:
        return 0
    ignored = set(getattr(wrapper, "parameters_to_ignore", ()))
    sizes = (
        parameter.numel() * parameter.element_size()
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and name not in ignored
    )
    return int(sum(sizes))
