"""Which session a graph of the backend belongs to; of sharded models: tests/validation/ranks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.drop_in import backend_sessions
from schedsim.validation.drop_in.backend_sessions import BackendSessions, is_valid
from schedsim.validation.drop_in.gathered_session import GatheredSession
from schedsim.validation.drop_in.local_session import LocalSession
from schedsim.validation.ranks import ALONE
from schedsim.validation.torch_private.module_tables import call_instead
from torch import nn

from schedsim.errors import SchedsimError


def backend(graph_module, inputs, *, options=None):
    """A backend that nobody has given a graph."""


@pytest.fixture
def sessions():
    """Of a backend of which nothing was compiled."""
    return BackendSessions(backend)


def test_each_mapping_of_options_has_its_session(sessions):
    """Equal ones of two calls of torch.compile are two, which one of a graph stays with."""
    one, other = {"budget": "1GiB"}, {"budget": "1GiB"}
    first = sessions.of_present(one)
    assert isinstance(first, LocalSession)
    assert sessions.of_present(one) is first is sessions.known(one)
    assert sessions.known(other) is None
    assert sessions.of_present(other) is not first
    assert sessions.of_call(one, first) is first
    assert is_valid(one)
    assert not is_valid({"budgett": 1})
    with pytest.raises(SchedsimError, match="needs a budget"):
        sessions.of(None)


def test_what_is_around_a_sharded_model_is_in_its_session(sessions, monkeypatch):
    """Graphs that run for it, and others with equal options, whichever came first."""
    options = {"budget": "1GiB"}
    before = sessions.of_present(options)
    roots = [nn.Linear(2, 2)]
    monkeypatch.setattr(backend_sessions, "ranks_of", lambda model: ALONE)
    monkeypatch.setattr(backend_sessions, "when_forward_begins", lambda model, begins: None)
    monkeypatch.setattr(GatheredSession, "plans_for", lambda self, model: model is roots[0])
    monkeypatch.setattr(backend_sessions, "running_root", lambda: roots[0])
    found = sessions.of_call(options, before)
    assert isinstance(found, GatheredSession)
    assert sessions.of_call(dict(options), found) is found is sessions.for_model(roots[0])
    with pytest.raises(SchedsimError, match=r"budget='1GiB' and budget='2GiB'"):
        sessions.of_present({"budget": "2GiB"})
    assert sessions.around(options) is None  # the root says what it is given
    monkeypatch.setattr(backend_sessions, "running_root", lambda: None)
    assert sessions.of_call(options, before) is found is sessions.of(dict(options))
    apart = sessions.of_present({"budget": "2GiB"})
    assert isinstance(apart, LocalSession)
    assert sessions.of_call({"budget": "2GiB"}, apart) is apart
    assert not sessions.is_coming()
    roots.append(nn.Linear(2, 2))
    monkeypatch.setattr(backend_sessions, "running_root", lambda: roots[1])
    call_instead(roots[1], SimpleNamespace(session=before))
    with pytest.raises(SchedsimError, match="has a budget in place"):
        sessions.of_present(options)
    roots.clear()
    monkeypatch.undo()
    assert sessions.of(options) is before
