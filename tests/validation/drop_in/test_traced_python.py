"""What Dynamo does not look at again after a trace: the backend refuses it where it has changed."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.drop_in.traced_python import TracedPython  # noqa: E402
from torch import nn  # noqa: E402

from schedsim.errors import SchedsimError  # noqa: E402

SCALE = "SCHEDSIM_SCALE_OF_A_TEST"


def scale():
    return float(os.environ.get(SCALE, "1"))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return torch.tanh(self.linear(x)) * scale()


@pytest.mark.slow
def test_a_method_that_a_class_is_given_later_is_refused(monkeypatch):
    torch._dynamo.reset()
    model = nn.Sequential(Scaled(), Scaled())
    step = torch.compile(model, backend="schedsim", options={"budget": "1MiB", "effort": 0.1})
    x = torch.randn(4, 8)
    step(x).sum().backward()
    before = Scaled.forward
    monkeypatch.setattr(Scaled, "forward", lambda self, x: self.linear(x))
    with pytest.raises(SchedsimError, match=r"Scaled\.forward was replaced, .* not look at") as got:
        step(x)
    assert "in_place=True" in got.value.hint
    monkeypatch.setattr(Scaled, "forward", before)
    step(x).sum().backward()


def test_variables_of_the_environment_in_traced_code_are_watched(monkeypatch):
    torch._dynamo.reset()
    made = []

    def backend(graph_module, _inputs):
        made.append(TracedPython(graph_module))
        return graph_module

    monkeypatch.delenv(SCALE, raising=False)
    torch.compile(Scaled(), backend=backend)(torch.randn(4, 8))
    made[0].refuse_changed()
    monkeypatch.setenv(SCALE, "2")
    with pytest.raises(SchedsimError, match=f"environment's {SCALE} is '2' instead of not set"):
        made[0].refuse_changed()


@pytest.mark.slow
def test_a_hook_that_is_registered_later_becomes_part_of_the_step():
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    step = torch.compile(model, backend="schedsim", options={"budget": "1MiB", "effort": 0.1})
    x = torch.randn(4, 8)
    step(x).sum().backward()
    model[0].register_forward_hook(lambda module, given, made: made * 2)
    assert torch.equal(step(x), model(x))
