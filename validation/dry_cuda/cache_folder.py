"""The folder in which the built library is kept. No torch here: the launcher must not import it."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$SCHEDSIM_CACHE_DIR``, or ``~/.cache/schedsim``."""
    given = os.environ.get("SCHEDSIM_CACHE_DIR")
    return Path(given) if given else Path.home() / ".cache" / "schedsim"
