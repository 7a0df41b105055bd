"""Python again with ops that compute: code, a module, a script, and pytest's plugin."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.dry_cuda import values_run


@pytest.fixture(autouse=True)
def enabled(monkeypatch, tmp_path):
    """Counts how often ops were made to compute; nothing else of the process changes."""
    calls = []
    monkeypatch.setattr(values_run, "enable", lambda: calls.append(list(sys.argv)))
    monkeypatch.setattr(sys, "argv", ["pytest"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return calls


CODE = "import sys\nprint(__name__, sys.argv[1:])"


def test_code_sees_its_arguments(capsys, enabled):
    """As after ``python -c``: its own name is no argument, and it is the main module."""
    values_run.run(["-c", CODE, "one", "--two"])
    assert capsys.readouterr().out == "__main__ ['one', '--two']\n"
    assert sys.argv[0] == "-c"
    assert len(enabled) == 1


def test_a_script_runs_as_the_main_module(capsys, tmp_path, enabled):
    """With its arguments."""
    (tmp_path / "script.py").write_text(CODE)
    values_run.run(["script.py", "3"])
    assert capsys.readouterr().out == "__main__ ['3']\n"
    assert len(enabled) == 1


def test_a_module_of_the_folder_is_found(capsys, tmp_path, enabled):
    """As ``python -m`` finds it."""
    (tmp_path / "some_module_of_mine.py").write_text(CODE)
    values_run.run(["-m", "some_module_of_mine", "x"])
    assert capsys.readouterr().out == "__main__ ['x']\n"
    assert sys.path[0] == ""
    assert len(enabled) == 1


def test_pytest_is_told_before_it_collects(enabled):
    """By its hook."""
    values_run.pytest_configure(None)
    assert len(enabled) == 1
