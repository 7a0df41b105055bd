"""Which versions of torch the tests have run on."""

from __future__ import annotations

import re

import torch

OLDEST = (2, 11)
NEWEST = (2, 15)
"""Minor versions, both included; docs/torch-versions.md has what came out on each."""


def minor_version(text: str) -> tuple[int, int]:
    """Major and minor number of a version.

    Examples
    --------
    >>> minor_version("2.15.0+cu132")
    (2, 15)
    """
    found = re.match(r"(\d+)\.(\d+)", text)
    if found is None:
        raise ValueError(f"{text!r} is no version")
    return int(found[1]), int(found[2])


def is_tested() -> bool:
    """Whether the torch at hand is of a version that the tests have run on."""
    return OLDEST <= minor_version(torch.__version__) <= NEWEST
