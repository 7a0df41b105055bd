"""Settings of the tests of loops that Dynamo traces."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def forget_graphs():
    """No test meets what Dynamo traced for another."""
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
