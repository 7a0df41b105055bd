"""Warnings name a line of the user's code, from wherever they come."""

from __future__ import annotations

import threading
import warnings
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.guards.plan_variants import PlainStepWarning  # noqa: E402
from schedsim.validation.user_warnings import warn_user  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


def lines_of(told):
    """The lines, in this file, that warnings name."""
    assert {it.filename for it in told} == {__file__}
    with open(__file__) as file:
        rows = file.readlines()
    return [rows[it.lineno - 1].strip() for it in told]


def test_a_step_in_place_warns_at_the_line_that_runs_it():
    """Through the modules of PyTorch and ours."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), torch.ones(4, 8)
    schedsim.rematerialize(model, x, "100%", in_place=True, effort=0.2)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loss = model(x).sum()
        loss.backward(retain_graph=True)  # tells what it holds
    told = [it for it in told if issubclass(it.category, PlainStepWarning)]
    assert len(told) == 1
    assert "# tells what it holds" in lines_of(told)[0]


def test_a_module_with_its_loss_warns_at_the_line_that_made_it():
    """As where a model comes in evaluation mode."""
    model, x = nn.Linear(8, 8).eval(), torch.ones(4, 8)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        schedsim.rematerialize(model, x, "100%", lambda out: out.sum())  # makes it
    told = [it for it in told if "was in evaluation mode" in str(it.message)]
    assert len(told) == 1
    assert "# makes it" in lines_of(told)[0]


@contextmanager
def around():
    """Warn as the block ends."""
    yield
    warn_user("in a context")


def test_helpers_of_the_standard_library_are_passed_over():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with around():
            pass
    assert lines_of(told) == ['warn_user("in a context")']


def test_a_thread_of_no_user_still_warns(monkeypatch):
    """As one of the engine of autograd on a GPU."""
    code = compile(
        "from schedsim.validation.user_warnings import warn_user\nwarn_user('x')", "", "exec"
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        thread = threading.Thread(target=exec, args=(code, {"__name__": "torch.made_up"}))
        thread.start()
        thread.join()
    assert [str(it.message) for it in told] == ["x"]
