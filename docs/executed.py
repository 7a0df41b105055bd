"""Pages whose commands are run: what they show is what came out.

    python docs/executed.py [PAGE ...]       # runs tutorials, and writes what came out into them

In a page, a console block holds commands behind ``$`` with their output; a line ``...`` stands
for any lines. A block behind ``<!-- file: NAME -->`` is written to that file first. All blocks of a
page run in one empty folder, in their order.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parent
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))

_BLOCK = re.compile(r"(?:<!-- file: (\S+) -->\n)?```(\w+)[^\n]*\n(.*?)```", re.DOTALL)
# What differs between runs and machines: how long planning took, in a sentence or a last column.
_VOLATILE = re.compile(r"\bin \d[\d.]* (?:us|ms|s)\b|\s+\d[\d.]* (?:us|ms|s)$")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its content, the file it is to be, and where it stands."""

    language: str
    content: str
    file: str | None
    span: tuple[int, int]


@dataclass(frozen=True)
class Shown:
    """A command and what a page says that it prints."""

    command: str
    output: str


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page."""
    for match in _BLOCK.finditer(text):
        yield Block(match[2], match[3], match[1], match.span(3))


def commands(content: str) -> list[Shown]:
    """Commands of a console block with their outputs."""
    parts = re.split(r"^\$ ", content, flags=re.MULTILINE)[1:]
    split = (part.partition("\n") for part in parts)
    return [Shown(command, output) for command, _, output in split]


def run(command: str, folder: Path) -> str:
    """The output of `command`, on both streams, 110 columns wide and without colours."""
    words = shlex.split(command)
    if words[0] == "schedsim":
        words[:1] = [sys.executable, "-m", "schedsim"]
    elif words[0] == "python":
        words[0] = sys.executable
    path = os.pathsep.join([str(DOCS.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        words,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "110"},
        timeout=300,
    )
    return done.stdout


def plain(output: str) -> list[str]:
    """Lines without what differs between runs, and without blank ones."""
    lines = (_VOLATILE.sub(" T", line).rstrip() for line in output.splitlines())
    return [line for line in lines if line]


def agrees(shown: str, real: str) -> bool:
    """Whether `real` is what a page shows, where a line ``...`` stands for any lines but errors."""
    errors = {line for line in plain(real) if line.startswith("error:")}
    if not errors <= set(plain(shown)):
        return False
    parts: list[list[str]] = [[]]
    for line in plain(shown):
        if line == "...":
            parts.append([])
        else:
            parts[-1].append(line)
    lines = plain(real)
    if len(parts) == 1:
        return parts[0] == lines
    if lines[: len(parts[0])] != parts[0]:
        return False
    at = len(parts[0])
    for part in parts[1:-1]:
        places = range(at, len(lines) - len(part) + 1)
        found = next((i for i in places if lines[i : i + len(part)] == part), None)
        if found is None:
            return False
        at = found + len(part)
    rest = parts[-1]
    return len(lines) - len(rest) >= at and lines[len(lines) - len(rest) :] == rest


def executed(text: str, folder: Path) -> Iterator[tuple[Block, Shown, str]]:
    """Every command of a page with what it prints now, files of the page written on the way."""
    (folder / "benchmarks").symlink_to(DOCS.parent / "benchmarks")  # as in a checkout
    for block in blocks(text):
        if block.file is not None:
            (folder / block.file).write_text(block.content)
        if block.language == "console":
            for shown in commands(block.content):
                yield block, shown, run(shown.command, folder)


def refreshed(text: str) -> str:
    """The page with what came out; outputs with a line ``...`` stay where they agree."""
    new: dict[tuple[int, int], str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for block, shown, real in executed(text, Path(folder)):
            kept = shown.output if agrees(shown.output, real) else real
            new[block.span] = new.get(block.span, "") + f"$ {shown.command}\n{kept}"
    for (start, end), content in sorted(new.items(), reverse=True):
        text = text[:start] + content + text[end:]
    return text


if __name__ == "__main__":
    for page in [Path(name) for name in sys.argv[1:]] or TUTORIALS:
        page.write_text(refreshed(page.read_text()))
        print(page)
