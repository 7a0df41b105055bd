"""Where `schedsim.algorithms` and `schedsim.validation` are found in a checkout.

An installed package holds both folders. In a checkout they lie beside the folder of `schedsim`,
which Python finds first when it is started in the checkout's root, installed or not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

_PACKAGE = Path(__file__).resolve().parent
_BESIDE = ("algorithms", "validation")


class _BesideFinder:
    """Finds the two packages that lie beside `schedsim`, and nothing else."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The place of `name`, where it is one of the two; ``None`` leaves it to other finders."""
        parent, _, folder = name.rpartition(".")
        if parent != __package__ or folder not in _BESIDE:
            return None
        place = _PACKAGE.parent / folder
        return spec_from_file_location(
            name, place / "__init__.py", submodule_search_locations=[str(place)]
        )


def find_beside() -> None:
    """Make both importable where this is a checkout; an installed package needs nothing."""
    installed = any((_PACKAGE / folder).is_dir() for folder in _BESIDE)
    if not installed and all((_PACKAGE.parent / f / "__init__.py").is_file() for f in _BESIDE):
        sys.meta_path.append(_BesideFinder)
