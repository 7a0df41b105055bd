"""pytest's plugin for ``--values``: ops of the tests compute."""

from __future__ import annotations

from typing import Any


def pytest_configure(config: Any) -> None:
    """Before any test is collected."""
    from .values import enable

    enable()
