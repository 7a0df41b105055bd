"""Where `schedsim.algorithms` and `schedsim.validation` are found in a checkout.

An installed package holds both folders. In a checkout they lie beside the folder of `schedsim`,
which Python finds first when it is started in the checkout's root, installed or not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
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

    @staticmethod
    def find_distributions(context: DistributionFinder.Context) -> Iterator[Distribution]:
        """What the checkout announces to other packages; nothing to who asks for one by name."""
        if context.name is None:
            yield _Announced()


class _Announced(Distribution):
    """The entry points by which other packages find schedsim, where nothing is installed."""

    def read_text(self, filename: str) -> str | None:
        """The text of one of the files of a package's metadata."""
        return _METADATA.get(filename)

    def locate_file(self, path: object) -> Path:
        """Where a file of the package is."""
        return _PACKAGE.parent / str(path)


_METADATA = {
    "METADATA": f"Name: {__package__}\nVersion: 0\n",
    "entry_points.txt": "[torch_dynamo_backends]\n"
    f"{__package__} = {__package__}.validation.drop_in.backend:{__package__}\n",
}


def find_beside() -> None:
    """Make both importable where this is a checkout; an installed package needs nothing."""
    installed = any((_PACKAGE / folder).is_dir() for folder in _BESIDE)
    if not installed and all((_PACKAGE.parent / f / "__init__.py").is_file() for f in _BESIDE):
        sys.meta_path.append(_BesideFinder)
