"""Settings of the tests on real models."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """Measured times go to a folder of their own, not to the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCHEDSIM_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Test processes run side by side: more threads than cores make small kernels very slow."""
    try:
        import torch
    except ImportError:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def with_others_tensors():
    """For a test of what is said of tensors that were there before a model got its budget."""


@pytest.fixture(autouse=True)
def without_others_tensors(request, monkeypatch):
    """Tensors that other tests have left in the process are not what a loop holds: no line."""
    if "with_others_tensors" in request.fixturenames:
        return
    try:
        from schedsim.validation.drop_in.local_session import LocalSession
    except ImportError:
        return
    monkeypatch.setattr(LocalSession, "_tell_uncounted", lambda session: None)


@pytest.fixture
def uncompiled(monkeypatch):
    """Groups whose ops run one by one: what they compute, without seconds of compiling.

    They take other bytes than compiled ones of the same name, which are measured apart.
    """
    from schedsim.validation.compiled.group import FusedGroup

    def as_it_is(self, function):
        return lambda arguments: function(*arguments)

    monkeypatch.setattr(FusedGroup, "compiled_as", as_it_is)
    monkeypatch.setenv("SCHEDSIM_CACHE_DIR", f"{os.environ['SCHEDSIM_CACHE_DIR']}-by-op")
