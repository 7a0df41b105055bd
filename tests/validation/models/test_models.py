"""The models: sizes of the named configurations, and that each trains."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.models import MODELS, build_model, num_parameters, read_options  # noqa: E402
from small_models import SMALL  # noqa: E402

from schedsim import SchedsimError  # noqa: E402


@pytest.mark.parametrize("name", MODELS)
def test_named_configurations_have_their_published_size(name):
    """Counted on the meta device, where nothing is allocated."""
    assert num_parameters(build_model(name, device="meta").model) == MODELS[name].num_parameters


@pytest.mark.parametrize("label", SMALL)
def test_small_ones_give_every_parameter_a_gradient(label):
    """loss(model(*inputs)) is a scalar whose backward reaches all of the model."""
    name, options = SMALL[label]
    model, inputs, loss = build_model(name, **options)
    loss(model(*inputs)).backward()
    lacking = [n for n, p in model.named_parameters() if p.grad is None]
    assert lacking == []


def test_the_same_seed_gives_the_same_model():
    """Weights and inputs; the global generator is left as it was."""
    before = torch.get_rng_state()
    one, two = (build_model("mlp", layers=2, hidden=8, batch=2) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.inputs[0], two.inputs[0])
    assert all(map(torch.equal, one.model.parameters(), two.model.parameters()))


def test_unknown_names_and_options_are_answered_with_the_nearest():
    """A hint each."""
    with pytest.raises(SchedsimError) as wrong:
        build_model("resnet5O")
    assert "resnet50" in wrong.value.hint
    with pytest.raises(SchedsimError) as wrong:
        build_model("resnet50", bach=4)
    assert "batch" in wrong.value.hint
    with pytest.raises(SchedsimError):
        read_options("batch")
    assert read_options("depths=1-2-1,image=32") == {"depths": (1, 2, 1), "image": 32}
