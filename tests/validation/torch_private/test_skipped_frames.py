"""Functions that Dynamo gives up are told of, by backend."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in import backend  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning  # noqa: E402
from schedsim.validation.torch_private.skipped_frames import tell_of_skipped  # noqa: E402
from torch import nn  # noqa: E402


class Recurrent(nn.Module):
    """A layer that Dynamo does not trace, by its default settings."""

    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(4, 4)

    def forward(self, x):
        return self.layer(x)[0]


def plain(graph_module, inputs):
    """A backend."""
    return graph_module.forward


def other(graph_module, inputs):
    """Another one."""
    return graph_module.forward


def test_a_function_is_told_of_for_its_backend_alone():
    torch._dynamo.reset()
    said: list[tuple[str, str]] = []
    for _ in range(2):  # once, however often it is asked for
        tell_of_skipped(plain, lambda code, reason: said.append((code.co_qualname, reason)))
    x = torch.randn(2, 2, 4)
    torch.compile(Recurrent(), backend=other)(x)
    torch.compile(nn.Linear(4, 4), backend=plain)(x)
    assert said == []
    torch._dynamo.reset_code_caches()
    torch.compile(Recurrent(), backend=plain)(x)
    [(name, reason)] = said
    assert name == "Recurrent.forward"
    assert "LSTM" in reason
    torch._dynamo.reset()


def test_the_backend_says_that_a_model_has_no_budget():
    """No graph of it comes, so that its step would otherwise be the plain one in silence."""
    torch._dynamo.reset()
    tell_of_skipped(backend.schedsim, backend._say_skipped)  # which the reset has forgotten
    options = {"budget": "1MiB"}
    with pytest.warns(PlainStepWarning, match="not trace Recurrent.forward: .*LSTM"):
        torch.compile(Recurrent(), backend=backend.schedsim, options=options)(torch.randn(2, 2, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlainStepWarning)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        torch.compile(model, backend=backend.schedsim, options=dict(options))(torch.randn(2, 4))
    torch._dynamo.reset()
