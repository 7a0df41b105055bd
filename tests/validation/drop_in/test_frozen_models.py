"""Forwards of a model that is frozen for a while, as of a generator while its critic is trained."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.backend import session_of  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


@pytest.mark.parametrize("way", ["backend", "in place"])
def test_what_a_frozen_model_gives_is_no_step_and_counts_while_it_is_held(way):
    """It ran as it was, with a line that Dynamo traces nothing of it."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(16, 64), nn.Tanh()), torch.randn(32, 16)
    options = {"budget": "1MB", "effort": 0.1, "check": "never"}
    if way == "backend":
        call = torch.compile(model, backend="schedsim", options=options)
        session = session_of(options)
    else:
        call = schedsim.rematerialize(model, x, in_place=True, **options)
        session = session_in(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.requires_grad_(False)
        made = call(x)
        model.requires_grad_(True)
        loss = call(x).square().mean()
    now = session.plans.known.resident.now
    assert now.passing_bytes == made.nbytes
    loss.backward()
