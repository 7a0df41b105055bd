"""How notebooks show workloads, plans, simulations and curves."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class ShownInNotebooks:
    """Gives a class the picture that notebooks ask for; figures are imported only then."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """The object in words, and its picture."""
        figures: Any = import_module("schedsim.figures.notebook")
        page: str = figures.page(self)
        return page
