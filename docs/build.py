"""Builds the site, without a network: every warning is an error.

    pip install '.[docs]' && python docs/build.py [FOLDER]
    python docs/build.py [FOLDER] --external    # asks for every link to other sites

The pages are then in FOLDER, by default site/; begin with index.html. Links within the site are
checked while it is built; those to other sites want a network, and are skipped where none answers.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
START = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html">\n'


def build(folder: Path) -> int:
    """The exit code of Sphinx."""
    code = sphinx(folder, "html", "-W", "--keep-going", "-d", str(folder / ".doctrees"))
    (folder / "index.html").write_text(START)
    return code


def sphinx(folder: Path, builder: str, *options: str) -> int:
    """The exit code of Sphinx's `builder`."""
    from sphinx.cmd.build import main

    return main(["-b", builder, "-q", *options, "-c", str(ROOT / "docs"), str(ROOT), str(folder)])


def check_external(folder: Path) -> int:
    """Ask for every link to another site, by Sphinx's own checker: 1 where one is broken."""
    limits = ("-D", "linkcheck_timeout=10", "-D", "linkcheck_retries=2")
    sphinx(folder / "links", "linkcheck", *limits)
    lines = (folder / "links" / "output.json").read_text().splitlines()
    code, told = verdict(json.loads(line) for line in lines)
    print("\n".join(told))
    return code


def verdict(rows: Iterable[Mapping[str, Any]]) -> tuple[int, list[str]]:
    """The exit code and what is said of the checker's rows."""
    links = [row for row in rows if row["uri"].startswith(("http:", "https:"))]
    found = {row["uri"] for row in links if row["status"] in ("working", "redirected")}
    wrong = {row["uri"]: row for row in links if row["status"] in ("broken", "timeout")}
    refused = [row for row in wrong.values() if " Error: " in row["info"]]  # of HTTP: it answered
    if wrong and not found and not refused:
        return 0, [f"skipped: no network here, none of {len(wrong)} links to other sites answered"]
    told = [
        f"{row['filename']}:{row['lineno']}: {uri}: {row['info']}" for uri, row in wrong.items()
    ]
    return int(bool(wrong)), [*told, f"{len(found)} links to other sites work, {len(wrong)} do not"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "site")
    parser.add_argument(
        "--external", action="store_true", help="check links to other sites instead"
    )
    given = parser.parse_args()
    if given.external:
        sys.exit(check_external(given.folder))
    if (status := build(given.folder)) == 0:
        print(f"{given.folder / 'index.html'}")
    sys.exit(status)
