"""Products are lent a workspace on a CUDA device elsewhere."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.costs.library_workspaces import CAPABILITY  # noqa: E402

from schedsim.workloads.devices import DEVICES  # noqa: E402


def test_every_cuda_device_has_a_capability():
    """A new device of the table is not forgotten here."""
    others = {"mi300x", "cpu"}
    assert set(CAPABILITY) == set(DEVICES) - others
