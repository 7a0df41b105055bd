"""What a user's model raises is not called a fault of schedsim, and the other way round."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from schedsim.cli.errors_of_models import place_in_model

MODELS = """
import torch
from torch import nn

class Missing(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = nn.Linear(4, 4)
    def forward(self, x):
        return self.own(x) + self.missing

def layers(*widths):
    return nn.Sequential(*(nn.Sequential(nn.Linear(n, 4)) for n in widths))

def missing():
    return Missing(), (torch.randn(2, 4),), torch.sum
def shapes():
    return layers(4, 5, 4), (torch.randn(2, 4),), torch.sum
def targets():
    return layers(4, 4, 4), (torch.randn(2, 4), torch.tensor([1, 9])), nn.functional.cross_entropy
def loss():
    return layers(4, 4, 4), (torch.randn(2, 4),), lambda out: out.loss
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing", "at bad_models.py:10: AttributeError: 'Missing' object has no attribute"),
        ("shapes", "fails: RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x4 and 5x4)"),
        ("targets", "fails: IndexError: Target 9 is out of bounds."),
        ("loss", "at bad_models.py:22: AttributeError: 'Tensor' object has no attribute 'loss'"),
    ],
)
@pytest.mark.parametrize("level", ["block", "op"])
def test_the_line_of_a_model_that_fails_is_named(call, tmp_path, monkeypatch, name, says, level):
    """By a watched op, a module or the loss: it is the user's, and one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad_models.py").write_text(MODELS)
    code, out, err = call(f"plan bad_models.py:{name} --level {level} --mem 90% --device cpu")
    assert (code, out) == (2, "")
    message, hint = err.splitlines()
    assert message.startswith("error: the model or its loss fails")
    assert says in message
    assert "must run by itself" in hint


def test_a_fault_of_schedsim_is_none_of_the_model():
    """Raised by its own code, or by a library that it has called wrongly."""
    from schedsim.validation.capture.skeleton import run_step

    import schedsim

    def failing(function, *arguments):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            function(*arguments)
        return place_in_model(caught.value)

    assert failing(run_step, None, None, 0, (1,), {}) is None
    assert failing(schedsim.plan, 3, "1GB") is None
    assert failing(int, "x") is None
