"""Sizes from a model's own configuration, against the models that transformers makes of it."""

from __future__ import annotations

import json

import pytest
from small_configs import SMALL

from schedsim import SchedsimError
from schedsim.workloads import PRESETS, WorkloadOptions, build_workload
from schedsim.workloads.hf_configs import (
    PUBLISHED,
    hf_architecture,
    hf_config,
)


def test_files_folders_and_names(tmp_path):
    """A path, a folder, a published name in any letters, a preset, a family with other sizes."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SMALL}))
    for name in (tmp_path, tmp_path / "config.json"):
        assert hf_config(f"hf:{name}").num_layers == 3
    assert hf_config(f"hf:{tmp_path},layers=5").num_layers == 5
    for name, preset in PUBLISHED.items():
        assert hf_config(f"hf:{name}") == hf_config(f"hf:{name.upper()}") == PRESETS[preset]
    assert hf_config("hf:Qwen/Qwen3-8B-Base") == hf_config("hf:qwen3-8b")
    assert hf_config("hf:google/gemma-3-4b-it") == PRESETS["gemma3-4b"]
    built = build_workload(WorkloadOptions(preset=f"hf:{tmp_path}", seq=16, batch=2))
    assert built.workload.num_stages == 5


def test_the_cache_of_the_hub_is_read(tmp_path, monkeypatch):
    """Where a file was downloaded before, it is found without a network."""
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **SMALL}))
    seen = []

    def cached(name, file):
        seen.append((name, file))
        return str(path)

    monkeypatch.setattr(hub, "try_to_load_from_cache", cached)
    assert hf_config("hf:somebody/their-model").num_layers == 3
    assert seen == [("somebody/their-model", "config.json")]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hf:nobody/nothing", "neither a file nor a model"),
        ("hf:", "neither a file nor a model"),
        ("hf:../..", "no config.json"),
        ("hf:qwen3-8b,layers=3", "those published"),
        ("hf:llama,batch=3", "'batch=3' is not understood"),
        ("hf:llama,layers=x", "'layers=x' is not understood"),
    ],
)
def test_odd_names_are_refused(text, says, tmp_path, monkeypatch):
    """One line, and a hint."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "config.json").write_text("[]")
    monkeypatch.chdir(tmp_path / "a" / "b")
    with pytest.raises(SchedsimError, match=says):
        hf_config(text)


def test_a_folder_with_a_dot_in_its_name_keeps_it(tmp_path):
    folder = tmp_path / "qwen2.5-7b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **SMALL}))
    assert hf_config(f"hf:{folder}").name == "qwen2.5-7b"
    (tmp_path / "mine-1.5.json").write_text(json.dumps({"model_type": "llama", **SMALL}))
    assert hf_config(f"hf:{tmp_path / 'mine-1.5.json'}").name == "mine-1.5"


def test_a_cluster_takes_the_same_names(tmp_path):
    """A file with other sizes, a published name; what is no language model is refused."""
    path = tmp_path / "made" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"model_type": "smollm3", **SMALL}))
    found = hf_architecture(f"hf:{path},layers=5")
    assert (found.name, found.num_layers, found.tied) == ("made", 5, True)
    assert hf_architecture("hf:Qwen/Qwen3-8B").name == "qwen3-8b"
    with pytest.raises(SchedsimError, match="are those published"):
        hf_architecture("hf:Qwen/Qwen3-8B,layers=5")
    with pytest.raises(SchedsimError, match="no language model"):
        hf_architecture("hf:openai/whisper-large-v3")
    with pytest.raises(SchedsimError, match="neither a file nor a model that is known"):
        hf_architecture("hf:nobody/nothing")
