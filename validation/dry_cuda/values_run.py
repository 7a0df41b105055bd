"""``python ...`` again, with ops that compute: a script, ``-m MODULE`` or ``-c CODE``.

It is pytest's plugin for ``--values`` too.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

from .values import enable


def pytest_configure(config: Any) -> None:
    """Before any test is collected, ops of the tests compute."""
    enable()


def run(words: list[str]) -> None:
    """Run `words` as Python would, after its own name."""
    enable()
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path.insert(0, "")
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
        return
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, "")
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    run(sys.argv[1:])
