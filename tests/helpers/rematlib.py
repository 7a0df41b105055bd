"""The scripts of the library of instances, which are no package, as modules."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "rematlib"


def script(name: str) -> ModuleType:
    """``benchmarks/rematlib/NAME.py``, imported once."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.import_module(name)
