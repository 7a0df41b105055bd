"""What a ``config.json`` says and no formula uses is told or refused, and nothing else is."""

from __future__ import annotations

import pytest
from small_configs import SMALL

from schedsim import SchedsimError
from schedsim.workloads.config_fields import ConfigFields
from schedsim.workloads.config_readers import READERS, read_architecture


def notes(**fields):
    return read_architecture({"model_type": "llama", **SMALL, **fields}, "small").notes


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config is not used"),
        ({"num_nextn_predict_layers": 1}, "without the layer that predicts further tokens"),
        ({"num_nextn_predict_layers": 2}, "without the 2 layers that predict further tokens"),
        ({"hidden_act": "gelu_new"}, "'gelu_new' is counted as one kernel"),
        ({"logits_scaling": 8.0, "index_topk": 4}, "changes nothing here: index_topk, logits_sca"),
        ({"sliding_window": 128}, "changes nothing here: sliding_window"),
    ],
)
def test_what_is_not_counted_is_told(fields, says):
    """In one line each, and no more."""
    (line,) = notes(**fields)
    assert says in line


def test_what_changes_nothing_is_not_told():
    """Positions, formats, names, and what is off."""
    harmless = {
        "rope_theta": 1e6,
        "torch_dtype": "bfloat16",
        "eos_token_id": [1, 2],
        "hidden_act": "silu",
        "mlp_bias": False,
        "logits_scaling": 1.0,
        "quantization_config": None,
        "num_nextn_predict_layers": 0,
        "of_another_time": None,
    }
    assert notes(**harmless) == ()


@pytest.mark.parametrize("value", ["sillu", "xielu", 3, ["silu"], {"silu": 1}])
def test_an_activation_that_is_unknown_is_refused(value):
    """It may keep anything."""
    with pytest.raises(SchedsimError, match=r"hidden_act .* has no formula"):
        notes(hidden_act=value)


def test_a_field_that_is_read_is_not_told():
    """Whether it is there is no reading of it."""
    fields = ConfigFields({"one": 1, "two": 2}, "small")
    assert "one" in fields
    assert fields.notes() == ("of its config.json, what follows changes nothing here: one, two",)
    fields.number("one")
    fields.passed("two")
    assert fields.notes() == ()


# What transformers' own defaults have beside sizes: all of it is known not to be counted.
KNOWN = {
    "attn_logit_softcapping",
    "embd_pdrop",
    "swiglu_alpha",
    "swiglu_limit",
    "use_parallel_residual",
}


def test_defaults_of_every_family_are_read_or_known():
    """A line about what changes nothing would hide one about what does."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    told = set()
    for family in set(READERS) - {"kimi_k2", "deepseek_v2", "dots1", "solar_open"}:
        for note in read_architecture(
            transformers.AutoConfig.for_model(family).to_dict(), family
        ).notes:
            if "changes nothing here: " in note:
                told |= set(note.partition("here: ")[2].split(", "))
    assert told == KNOWN
