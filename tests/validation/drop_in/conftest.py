"""Settings of the tests of loops that Dynamo traces."""

from __future__ import annotations

import gc
import sys

import pytest


@pytest.fixture(autouse=True)
def forget_graphs():
    """No test meets what Dynamo traced for another, nor a model that another has left.

    Other folders' tests may leave models, which a traceback of pytest's holds, for one.
    """
    ledger = sys.modules.get("schedsim.validation.drop_in.beside.process_ledger")
    if ledger is not None:
        ledger._members.clear()
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
        gc.collect()


@pytest.fixture
def batch():
    """Inputs and targets of `in_place_models.Net`."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)
    return torch.randn(128, 32), torch.randn(128, 32)
