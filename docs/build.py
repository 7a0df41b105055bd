"""Builds the site, without a network: every warning is an error.

    pip install '.[docs]' && python docs/build.py [FOLDER]

The pages are then in FOLDER, by default site/; begin with index.html.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html">\n'


def build(folder: Path) -> int:
    """The exit code of Sphinx."""
    from sphinx.cmd.build import main

    options = ["-b", "html", "-W", "--keep-going", "-q", "-c", str(ROOT / "docs")]
    code = main([*options, "-d", str(folder / ".doctrees"), str(ROOT), str(folder)])
    (folder / "index.html").write_text(START)
    return code


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site"
    if (status := build(where)) == 0:
        print(f"{where / 'index.html'}")
    sys.exit(status)
