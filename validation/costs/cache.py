"""Measured op costs, kept between runs: one file per environment, one entry per op signature."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

SCHEMA = "schedsim.profiles/3"
"""The format of the entries. It is part of the file's name: versions of schedsim that write other
formats keep files of their own, and no version overwrites another's."""


def cache_folder() -> Path:
    """``$SCHEDSIM_CACHE_DIR``, or ``~/.cache/schedsim``."""
    given = os.environ.get("SCHEDSIM_CACHE_DIR")
    return Path(given) if given else Path.home() / ".cache" / "schedsim"


def cached_note(what: str, age_s: float, spread: float) -> str:
    """A note that `what` was measured before, with its age and the spread of its runs.

    Examples
    --------
    >>> cached_note("times", 7300.0, 0.07)
    'times: measured 2 hours ago, spread 7 %; --remeasure measures them again'
    """
    share = f"{spread:.0%}".replace("%", " %")
    return f"{what}: measured {_age(age_s)} ago, spread {share}; --remeasure measures them again"


def _age(seconds: float) -> str:
    """A length of time in the largest unit of which there are two."""
    for unit, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} seconds"


def is_measure(value: Any) -> bool:
    """Whether `value`, read from a cache, can be a time, a size or a spread.

    Examples
    --------
    >>> [is_measure(value) for value in (0.5, 3, -1.0, float("nan"), True, "3", None)]
    [True, True, False, False, False, False, False]
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value < math.inf


class ProfileCache:
    """The cached entries of one environment.

    Parameters
    ----------
    environment
        What a time depends on besides the op: device, versions, threads. Its hash names the file.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        text = json.dumps([SCHEMA, environment], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.environment = environment
        self.path = cache_folder() / "profiles" / f"{digest}.json"
        self.entries: dict[str, Any] = self._read()

    def _read(self) -> dict[str, Any]:
        # A cache that cannot be read counts as empty: everything in it can be measured again.
        try:
            document = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}
        fits = isinstance(document, dict) and document.get("schema") == SCHEMA
        if not fits or document.get("environment") != self.environment:
            return {}
        entries = document.get("entries")
        return entries if isinstance(entries, dict) else {}

    def save(self) -> None:
        """Write all entries, including those that another process has added meanwhile."""
        self.entries = self._read() | self.entries
        document = {"schema": SCHEMA, "environment": self.environment, "entries": self.entries}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self.path.parent, suffix=".tmp", delete=False
            ) as file:
                json.dump(document, file)
            os.replace(file.name, self.path)
        except OSError:
            return  # a folder that cannot be written costs time, not results
