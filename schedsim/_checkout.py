"""Makes `schedsim.algorithms` and `schedsim.validation` importable in a checkout.

An installed package holds both folders. In a checkout they lie beside the folder `schedsim`. Python
started in the root of the checkout imports that folder even where schedsim is installed, so the two
packages have to be found beside it.
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
        """The spec of `name` if it is one of the two; ``None`` leaves it to other finders."""
        parent, _, folder = name.rpartition(".")
        if parent != __package__ or folder not in _BESIDE:
            return None
        place = _PACKAGE.parent / folder
        return spec_from_file_location(
            name, place / "__init__.py", submodule_search_locations=[str(place)]
        )

    @staticmethod
    def find_distributions(context: DistributionFinder.Context) -> Iterator[Distribution]:
        """The checkout's entry points, for a search of all packages; none for one by name."""
        if context.name is None:
            yield _Announced()


class _Announced(Distribution):
    """The entry points by which other packages find schedsim where schedsim is not installed."""

    def read_text(self, filename: str) -> str | None:
        """The text of the metadata file `filename`."""
        return _METADATA.get(filename)

    def locate_file(self, path: object) -> Path:
        """The place of a file of the package."""
        return _PACKAGE.parent / str(path)


_METADATA = {
    "METADATA": f"Name: {__package__}\nVersion: 0\n",
    "entry_points.txt": "[torch_dynamo_backends]\n"
    f"{__package__} = {__package__}.validation.drop_in.backend:{__package__}\n",
}


def find_beside() -> None:
    """Make both packages importable in a checkout; an installed package needs no help."""
    installed = any((_PACKAGE / folder).is_dir() for folder in _BESIDE)
    if not installed and all((_PACKAGE.parent / f / "__init__.py").is_file() for f in _BESIDE):
        sys.meta_path.append(_BesideFinder)
