"""Wrong use is told in one line."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import SchedsimError  # noqa: E402

mse_loss = nn.functional.mse_loss


def given():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))
    return model, torch.randn(16, 8), torch.randn(16, 8)


def refused(match, hint, *arguments, **options):
    """Assert that the call is refused by one line, with a way out, and nothing else is said."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=schedsim_warning())
        with pytest.raises(SchedsimError, match=match) as caught:
            schedsim.rematerialize(*arguments, **options)
    assert hint in str(caught.value.hint)
    assert "\n" not in caught.value.message


def schedsim_warning():
    from schedsim.validation.whole_step.step_capture import BlockLevelWarning

    return BlockLevelWarning


def test_a_forgotten_loss():
    """With the target among the inputs, or without: no word of blocks."""
    model, x, target = given()
    refused("loss=, is missing", "loss=", model, (x, target), "80%")
    refused("loss= is missing", "in_place=True", model, x, "80%")
    refused("loss=3 is no function", "output", model, (x, target), "80%", 3)


def test_a_target_by_keyword():
    """When planning, and in a step."""
    model, x, target = given()
    refused("no keyword 'target'", "(x, target)", model, {"input": x, "target": target}, "80%")
    refused("no keyword 'target'", "last", model, {"input": x, "target": target}, "80%", mse_loss)
    module = schedsim.rematerialize(model, (x, target), "100%", mse_loss, effort=1)
    with pytest.raises(SchedsimError, match="no keyword 'target'"):
        module(x, target=target)
    with pytest.raises(SchedsimError, match="'input' is missing") as caught:
        module(x)  # the loop computes the loss of an output
    assert "in_place=True" in str(caught.value.hint)
    module(x, target).backward()


def test_a_class_for_a_loss_and_a_loader_for_inputs():
    model, x, target = given()
    refused("loss=MSELoss is a class", "MSELoss()", model, (x, target), "80%", nn.MSELoss)
    loader = torch.utils.data.DataLoader([x])
    refused("inputs is a DataLoader", "next(iter(", model, loader, "80%", mse_loss)
    refused("inputs is None", "a tuple of inputs", model, None, "80%", mse_loss)


def test_a_lazy_layer():
    """Its parameters have no shape before the first forward; afterwards it is one as any other."""
    x, target = torch.randn(4, 6), torch.randn(4, 2)
    model = nn.Sequential(nn.LazyBatchNorm1d(affine=False), nn.LazyLinear(2))
    for more in ({}, {"in_place": True}):
        loss = () if more else (mse_loss,)
        given = (x,) if more else (x, target)
        refused("has no shape yet", "call the model once", model, given, "100%", *loss, **more)
    with torch.no_grad():
        model(x)
    schedsim.rematerialize(model, (x, target), "100%", mse_loss, effort=0.1)(x, target).backward()


def test_a_target_given_to_a_model_in_place():
    """By place or keyword, and what is missing; nothing to train."""
    model, x, target = given()
    more = {"in_place": True}
    refused("takes 1 input, and is given 2", "the loop computes", model, (x, target), "80%", **more)
    named = {"input": x, "target": target}
    refused("takes no keyword 'target'", "without the target", model, named, "80%", **more)
    refused("missing a required argument", "is called with", model, (), "80%", **more)
    refused(
        "loss= and chunk= are not",
        "leave them out",
        model,
        x,
        "80%",
        mse_loss,
        chunk="auto",
        **more,
    )
    frozen = model.requires_grad_(False)
    refused("no parameter of", "x.requires_grad_()", frozen, x, "80%", **more)


@pytest.mark.parametrize("level", ["op", "block"])
def test_a_frozen_model_is_told_what_works(level):
    """One line at every level, which names what works."""
    model, x, target = given()
    model.requires_grad_(False)
    step = {"loss": mse_loss, "level": level}
    refused("needs no gradient", "an input that requires", model, (x, target), "100%", **step)
    if level == "block":
        x.requires_grad_()
        refused("by blocks does not give", "level='op'", model, (x, target), "100%", **step)
