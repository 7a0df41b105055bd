"""The range of versions is the one that is announced."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.torch_private.tested_versions import (
    NEWEST,
    OLDEST,
    is_tested,
    minor_version,
)

ROOT = Path(__file__).parents[3]


def test_the_extra_asks_for_what_was_tested():
    """From the oldest, to below the version after the newest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = project["optional-dependencies"]["torch"]
    oldest, below = re.findall(r"\d+\.\d+", wanted)
    assert minor_version(oldest) == OLDEST
    assert minor_version(below) == (NEWEST[0], NEWEST[1] + 1)
    assert is_tested()


def test_versions_are_read():
    """With what builds append."""
    assert minor_version("2.13.0+cpu") == (2, 13)
    with pytest.raises(ValueError, match="no version"):
        minor_version("nightly")
