"""The models: sizes of the named configurations, and that each trains."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.models import MODELS, build_model, num_parameters, read_options  # noqa: E402
from schedsim.validation.models.gpt2 import build_gpt2  # noqa: E402
from schedsim.validation.models.lstm import build_lstm  # noqa: E402
from schedsim.validation.models.mlp import build_mlp  # noqa: E402
from schedsim.validation.models.resnet import build_resnet  # noqa: E402
from schedsim.validation.models.unet import build_unet  # noqa: E402

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


@pytest.mark.parametrize(
    ("build", "options", "said"),
    [
        (build_resnet, {"depth": 18}, "depth 18 is of no bottleneck ResNet (one of 50, 101, 152"),
        (build_resnet, {"depth": "x"}, "depth 'x' is not a whole number"),
        (build_mlp, {"layers": 0}, "layers 0 is not at least 1"),
        (build_mlp, {"width": 3}, "build_mlp has no option 'width'"),
        (
            build_gpt2,
            {"hidden": 10, "heads": 3, "layers": 1},
            "hidden 10 is not a multiple of heads, 3",
        ),
        (build_lstm, {"batch": None}, "batch None is not a whole number"),
        (build_unet, {"levels": 9, "image": 8}, "image 8 is not a multiple of 2**levels"),
    ],
)
def test_what_a_builder_cannot_build_is_one_clear_line(build, options, said):
    """Never a bare ``KeyError``, nor a story of torch's; with no memory taken to find out."""
    with torch.device("meta"), pytest.raises(SchedsimError) as caught:
        build(**options)
    assert said in f"{caught.value} ({caught.value.hint})"
    assert "\n" not in str(caught.value)
