"""Where the built library is kept: the same place as all else, found without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.costs.cache import cache_folder as of_costs
from schedsim.validation.dry_cuda.cache_folder import cache_folder


@pytest.mark.parametrize("given", ["/tmp/somewhere", ""])
def test_it_is_the_folder_of_measured_costs(given, monkeypatch):
    """Whether the variable is set or not."""
    monkeypatch.setenv("SCHEDSIM_CACHE_DIR", given)
    assert cache_folder() == of_costs()
    assert cache_folder() == (Path(given) if given else Path.home() / ".cache" / "schedsim")


def test_the_launcher_need_not_load_torch():
    """It runs before the process that will have the device."""
    code = "import sys, schedsim.validation.dry_cuda.cache_folder; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
