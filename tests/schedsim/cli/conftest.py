"""What tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from four_stages import CHAIN

from schedsim.cli.app import run
from schedsim.files.document import save

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys) -> Call:
    """Run the command line on the words of one text: (exit code, stdout, stderr)."""

    def invoke(line: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(line.split())
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder: ``chain.json`` is in it, the chain of four stages."""
    monkeypatch.chdir(tmp_path)
    save(CHAIN, "chain.json")
    return tmp_path
