"""Whether a transform of torch.func runs."""

from __future__ import annotations

import torch
from schedsim.validation.torch_private.function_transforms import in_transform


def test_each_transform_is_seen_and_plain_calls_are_not():
    """Within another one, too."""
    seen = []

    def call(x):
        seen.append(in_transform())
        return x.sum()

    x = torch.ones(2)
    torch.func.grad(call)(x)
    torch.func.vmap(call)(torch.ones(3, 2))
    torch.func.jvp(call, (x,), (x,))
    torch.func.hessian(call)(x)
    assert seen == [True] * 4
    call(x.requires_grad_()).backward()
    assert seen[-1] is False
