"""Modes that see ops, and the schemas of these."""

from __future__ import annotations

import torch
from schedsim.validation.torch_private.op_modes import (
    OpOverload,
    TorchDispatchMode,
    chosen_branch,
    is_functional,
    schema_name,
    schema_of,
    without_alias_checks,
    without_modes,
)

aten = torch.ops.aten


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(schema_name(func))
        return func(*args, **(kwargs or {}))


def test_a_mode_sees_ops_but_for_those_run_without_it():
    """By name."""
    with Seen() as mode:
        x = torch.zeros(2)
        with without_modes():
            torch.ones(2)
        x.add_(1)
    assert mode.names == ["aten::zeros", "aten::add_"]


def test_the_look_for_shared_memory_is_left_out_and_other_modes_are_not():
    """AOTAutograd's own mode, by its name of today: a canary."""
    import torch._dynamo  # before it: the two import each other
    from torch._functorch._aot_autograd.runtime_wrappers import _AnalyzeCustomOpInputOutputMode
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    with Seen() as mode:
        with _AnalyzeCustomOpInputOutputMode() as look:
            with without_alias_checks():
                assert _get_current_dispatch_mode() is mode
                torch.zeros(2)
            assert _get_current_dispatch_mode() is look
        with without_alias_checks():
            torch.ones(2)
    assert mode.names == ["aten::zeros", "aten::ones"]


def test_schemas_of_ops():
    """What changes in place, what is a view; what is no op has none."""
    assert isinstance(aten.add_.Tensor, OpOverload)
    assert schema_of(aten.add_.Tensor).is_mutable
    assert not schema_of(aten.add.Tensor).is_mutable
    assert [argument.name for argument in schema_of(aten.exp.default).arguments] == ["self"]
    (made,) = schema_of(aten.view.default).returns
    assert made.alias_info is not None
    assert not made.alias_info.is_write
    assert schema_of(len) is None
    assert schema_name(len) == ""


def test_functional_tensors_are_told():
    """Those that a trace puts around others."""
    seen = []

    def function(x):
        seen.append(is_functional(x))
        return x + 1

    torch.func.functionalize(function)(torch.zeros(2))
    assert seen == [True]
    assert not is_functional(torch.zeros(2))


class SeenInBranches(Seen):
    supports_higher_order_operators = True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        branch = chosen_branch(func, args)
        if branch is None:
            return super().__torch_dispatch__(func, types, args, kwargs)
        with self:
            return branch()


def test_a_mode_enters_the_branch_that_runs():
    x = torch.ones(2, requires_grad=True)
    with SeenInBranches() as mode:
        made = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
    assert torch.equal(made, x.sin())
    torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)).sum().backward()  # works afterwards, too
    assert torch.equal(x.grad, x.cos())
    assert "aten::sin" in mode.names
    assert "aten::cos" not in mode.names
