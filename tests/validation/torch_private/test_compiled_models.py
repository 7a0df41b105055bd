"""What torch.compile was given for a backend is found, called or not."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.torch_private.compiled_models import (  # noqa: E402
    compilers_within,
    modules_given,
    options_given,
    options_in,
)
from torch import nn  # noqa: E402


def mine(graph_module, inputs, *, options=None):
    """A backend."""
    return graph_module.forward


def other(graph_module, inputs, *, options=None):
    """Another one."""
    return graph_module.forward


def test_modules_are_found_with_their_options_whichever_way_they_were_compiled():
    gc.collect()
    wrapped, itself, strange, plain = (nn.Linear(2, 2) for _ in range(4))
    first, second = {"budget": 1}, {"budget": 2}
    compiled = torch.compile(wrapped, backend=mine, options=first)
    itself.compile(backend=mine, options=second)
    strangers = torch.compile(strange, backend=other, options=first), plain
    found = {id(module): options for options, module in modules_given(mine)}
    assert found == {id(wrapped): first, id(itself): second}
    assert found[id(wrapped)] is first
    assert any(it is second for it in options_given(mine))
    del compiled, strangers


def test_what_is_gone_and_what_has_no_options_is_not_found():
    gc.collect()
    step = torch.compile(nn.Linear(2, 2), backend=mine, options={"budget": 1})
    without = torch.compile(nn.Linear(2, 2), backend=mine)
    assert len(modules_given(mine)) == 1
    del step
    gc.collect()
    assert modules_given(mine) == []
    assert any(it == {"budget": 1} for it in options_given(mine))  # which torch keeps
    del without


def test_the_function_that_a_user_gave_is_the_innermost():
    step = torch.compile(nn.Linear(2, 2), backend=mine, options={"budget": 1})
    compilers = compilers_within(step.dynamo_ctx.callback)
    assert compilers[-1] is mine
    assert options_in(compilers) == {"budget": 1}
    assert options_in([mine]) is None
