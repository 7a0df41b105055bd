"""Whether a transform of torch.func runs, or forward-mode differentiation."""

from __future__ import annotations

import torch
from schedsim.validation.torch_private.function_transforms import in_transform, is_traced
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx


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


def test_a_level_of_forward_mode_differentiation_is_seen():
    with torch.autograd.forward_ad.dual_level():
        assert in_transform()
    assert not in_transform()


def test_each_way_to_trace_is_seen():
    seen = []

    def call(x):
        seen.append(is_traced())
        return x + 1

    x = torch.ones(2)
    torch.jit.trace(call, x, check_trace=False)
    make_fx(call)(x)
    with FakeTensorMode() as mode:
        call(mode.from_tensor(x))
    assert seen == [True] * 3
    assert not is_traced()
