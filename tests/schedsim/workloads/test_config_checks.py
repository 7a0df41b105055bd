"""Formula models and generators say in one line what they cannot be."""

from __future__ import annotations

import math

import pytest

from schedsim.errors import SchedsimError
from schedsim.workloads import (
    WorkloadOptions,
    build_workload,
    get_device,
    layer_saved_bytes,
    model_state_bytes,
)
from schedsim.workloads.config_checks import check_config
from schedsim.workloads.resnet import ResNetConfig, resnet_model
from schedsim.workloads.synthetic import SYNTHETIC
from schedsim.workloads.synthetic_graphs import SYNTHETIC_GRAPHS
from schedsim.workloads.transformer import TransformerConfig, transformer_model

WRONG = (-1, 0, 1.5, math.nan, "no-such", b"x", [], {"x": 1}, object(), 10**30)
TRANSFORMER = {"name": "t", "num_layers": 1, "hidden": 8, "num_heads": 2, "seq": 4}
CALLS = {
    "resnet": (lambda **given: resnet_model(ResNetConfig(**given)), {"depth": 50, "batch": 1}),
    "resnet sizes": (
        lambda **given: resnet_model(ResNetConfig(depth=50, **given)),
        {"image": 224, "classes": 10, "dtype": "fp32"},
    ),
    "transformer": (
        lambda **given: transformer_model(TransformerConfig(**{**TRANSFORMER, **given})),
        {**TRANSFORMER, "batch": 1, "dtype": "fp16", "attention": "eager", "tensor_parallel": 1},
    ),
    "layer": (lambda **given: layer_saved_bytes(TransformerConfig(**given)), TRANSFORMER),
    "workload": (
        lambda **given: build_workload(WorkloadOptions(**given)),
        {"preset": "gpt2", "layers": 2, "hidden": 768, "batch": 1, "device": "a100-80gb"}
        | {"efficiency": 0.5, "static": "auto", "allow": ("quantize",)},
    ),
    "device": (get_device, {"name": "h100"}),
    "state": (
        model_state_bytes,
        {"num_parameters": 8, "optimizer": "adam", "zero_stage": 1, "data_parallel": 2},
    ),
    **{
        name: (generate, {"num_stages": 4, "seed": 0})
        for name, generate in SYNTHETIC.items()
        if name in ("uniform", "heavy-tailed")
    },
    "layered": (SYNTHETIC_GRAPHS["layered"], {"num_ops": 40, "seed": 0}),
    "tree": (SYNTHETIC_GRAPHS["tree"], {"num_ops": 40, "seed": 0}),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_value_gets_one_clear_line(call):
    """No builder ends in an error of numpy's, or in a bare ``KeyError``."""
    build, right = CALLS[call]
    build(**right)
    for name in right:
        for wrong in (*WRONG, None):
            if isinstance(wrong, int) and wrong > 10**9 and name in ("num_ops", "num_stages"):
                continue  # as many as there is memory for
            said = _error_of(build, {**right, name: wrong})
            if said is not None and not isinstance(said, SchedsimError):
                pytest.fail(f"{name}={wrong!r}: {type(said).__name__}: {said}")


def _error_of(build, given) -> Exception | None:
    try:
        build(**given)
    except Exception as error:
        return error
    return None


def test_the_line_names_the_values_allowed():
    """All choices are named; for counts, the least."""
    with pytest.raises(SchedsimError) as caught:
        resnet_model(ResNetConfig(depth=18))
    assert (caught.value.message, caught.value.hint) == (
        "depth 18 is unknown",
        "one of 50, 101, 152",
    )
    with pytest.raises(SchedsimError, match="batch 0 is not at least 1"):
        check_config(ResNetConfig(depth=50, batch=0), {}, ("batch",))
