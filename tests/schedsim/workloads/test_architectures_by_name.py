"""A model by its name, or by the configuration of Hugging Face that a name gives."""

import json

import pytest

from schedsim.errors import SchedsimError
from schedsim.workloads.architectures_by_name import get_architecture
from schedsim.workloads.known_architectures import ARCHITECTURES


def test_names_and_configurations_lead_to_the_same_model(tmp_path):
    """The known model, the same one as published, and one from a file."""
    known = get_architecture("llama3-8b")
    assert known is ARCHITECTURES["llama3-8b"]
    assert get_architecture("hf:meta-llama/Meta-Llama-3-8B") == known
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **sizes, **heads}))
    found = get_architecture(f"hf:{path}")
    assert found.num_parameters == known.num_parameters


def test_what_is_unknown_is_refused_with_the_nearest_name():
    """And with how to give a configuration."""
    with pytest.raises(SchedsimError, match="no language model") as caught:
        get_architecture("lama3-8b")
    assert "llama3-8b" in caught.value.hint
    with pytest.raises(SchedsimError):
        get_architecture("hf:nobody/nothing")


def test_a_path_without_its_prefix_is_answered_with_it(tmp_path):
    """A file, or a folder."""
    with pytest.raises(SchedsimError, match="no language model") as caught:
        get_architecture(str(tmp_path))
    assert caught.value.hint == f"of its config.json: hf:{tmp_path}"
