"""Keys of steps: equal where one plan serves both, and a difference in words where not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.whole_step.step_key import key_difference, key_digest, step_key  # noqa: E402
from torch import nn  # noqa: E402


def key_of(model, *inputs, **keywords):
    return step_key(model, inputs, keywords)


def test_values_do_not_count_and_forms_do():
    """Content of tensors and strides of a single row are left out."""
    model = nn.Linear(4, 4)
    known = key_of(model, torch.zeros(2, 4))
    assert known == key_of(model, torch.ones(2, 4))
    assert key_digest(known) == key_digest(key_of(model, torch.ones(2, 4)))
    one = torch.zeros(1, 4)
    assert key_of(model, one) == key_of(model, one.as_strided((1, 4), (9, 1)))
    for other in (torch.zeros(3, 4), torch.zeros(2, 4).double(), torch.zeros(4, 2).t()):
        assert known != key_of(model, other)
        assert key_digest(known) != key_digest(key_of(model, other))


def freeze(model):
    model.bias.requires_grad_(False)


@pytest.mark.parametrize(
    ("change", "words"),
    [(nn.Module.eval, "modules are in other modes"), (freeze, "other parameters train")],
)
def test_what_the_model_is_counts(change, words):
    model, x = nn.Linear(4, 4), torch.zeros(2, 4)
    known = key_of(model, x)
    change(model)
    assert key_difference(known, key_of(model, x)) == words


def test_a_difference_of_inputs_names_the_input():
    model, x = nn.Linear(4, 4), torch.zeros(2, 4)
    known = key_of(model, x, x)
    other = key_of(model, x, torch.zeros(3, 4))
    assert key_difference(known, other) == "input 1 has shape (3, 4) instead of (2, 4)"
    assert "input 0 is" in key_difference(known, key_of(model, x.double(), x))
    assert key_difference(known, key_of(model, [x, x])) == "the inputs are nested otherwise"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert key_difference(known, key_of(model, x, x)) == "autocast differs"
