"""Shared objects in inductor's cache that a process left unfinished when it was ended."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CUT_OFF = re.compile(r"([^\s:]+\.so): (?:file too short|invalid ELF header)")


def with_whole_objects(load: Callable[[], Any]) -> None:
    """Call `load`; where it finds an object that is cut off, make that anew and call it again.

    The compiler of a process that is killed leaves an empty file under the name of the object,
    which inductor takes for a finished one in every later process. Each such object is removed
    once, so that inductor compiles it again.

    Raises
    ------
    Exception
        Whatever else `load` raises.
    """
    removed: set[Path] = set()
    while True:
        try:
            load()
            return
        except Exception as error:  # inductor's own type, around that of the import
            path = _cut_object(error)
            if path is None or path in removed:
                raise
            removed.add(path)
            path.unlink(missing_ok=True)


def _cut_object(error: Exception) -> Path | None:
    """The object in inductor's cache that could not be loaded because it is not whole."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    found = _CUT_OFF.search(str(error))
    path = Path(found[1]) if found else None
    return path if path is not None and path.is_relative_to(cache_dir()) else None
