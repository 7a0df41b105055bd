"""Measured costs kept between runs, one file per environment."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.costs import cache as caching
from schedsim.validation.costs.cache import SCHEMA, ProfileCache, cache_folder


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache of its own."""
    monkeypatch.setenv("SCHEDSIM_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_entries_of_two_processes_are_joined(folder):
    """Each has read before the other wrote; another environment sees neither."""
    assert cache_folder() == folder
    one, other = ProfileCache({"device": "cpu"}), ProfileCache({"device": "cpu"})
    one.entries["mm"] = 1.0
    other.entries["relu"] = 2.0
    one.save()
    other.save()
    assert ProfileCache({"device": "cpu"}).entries == {"mm": 1.0, "relu": 2.0}
    assert ProfileCache({"device": "cuda"}).entries == {}


@pytest.mark.parametrize("content", ["{", "[]", f'{{"schema": "{SCHEMA}"}}'])
def test_a_file_that_cannot_be_used_is_an_empty_cache(content):
    """All that is in it can be measured again."""
    cache = ProfileCache({"device": "cpu"})
    cache.entries["mm"] = 1.0
    cache.save()
    cache.path.write_text(content)
    assert ProfileCache({"device": "cpu"}).entries == {}


def test_a_file_of_another_environment_is_not_believed():
    """Two hashes may be equal by chance, or a file may have been renamed."""
    cache = ProfileCache({"device": "cpu"})
    cache.entries["mm"] = 1.0
    cache.save()
    document = json.loads(cache.path.read_text())
    document["environment"] = {"device": "cuda"}
    cache.path.write_text(json.dumps(document))
    assert ProfileCache({"device": "cpu"}).entries == {}


def test_a_folder_that_cannot_be_written_costs_time_alone(folder, monkeypatch):
    """Nothing is raised."""
    (folder / "file").write_text("")
    monkeypatch.setenv("SCHEDSIM_CACHE_DIR", str(folder / "file"))
    ProfileCache({"device": "cpu"}).save()


def test_versions_that_write_other_forms_keep_files_of_their_own(monkeypatch):
    """Neither reads, or overwrites, what the other left in the same folder."""
    now = ProfileCache({"device": "cpu"})
    now.entries["mm"] = 1.0
    now.save()
    with monkeypatch.context() as patch:
        patch.setattr(caching, "SCHEMA", "schedsim.profiles/0")
        other = ProfileCache({"device": "cpu"})
        assert other.entries == {}
        other.entries["mm"] = {"another": "form"}
        other.save()
    assert other.path != now.path
    assert ProfileCache({"device": "cpu"}).entries == {"mm": 1.0}
