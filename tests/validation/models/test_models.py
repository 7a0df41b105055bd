"""The models: sizes of the named configurations, and that each trains."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.models import MODELS, build_model, num_parameters, read_options  # noqa: E402

from schedsim import SchedsimError  # noqa: E402


@pytest.mark.parametrize("name", MODELS)
def test_named_configurations_have_their_published_size(name):
    """Counted on the meta device, where nothing is allocated."""
    assert num_parameters(build_model(name, device="meta").model) == MODELS[name].num_parameters


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
