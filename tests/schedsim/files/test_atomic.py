"""Writing files whole: all of the content, or the file as it was."""

from __future__ import annotations

import os
import stat

import pytest

from schedsim.files.atomic import write_atomically


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    """And nothing beside it."""
    path = tmp_path / "plan.json"
    write_atomically(path, "first")

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, "second")
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_permissions_and_links_are_kept(tmp_path):
    """A new file gets what the user's mask leaves; a link still leads to the same file."""
    path, link = tmp_path / "plan.json", tmp_path / "link.json"
    before = os.umask(0o027)
    try:
        write_atomically(path, b"\x00")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o604)
    link.symlink_to(path)
    write_atomically(link, "through the link")
    assert link.is_symlink()
    assert path.read_text() == "through the link"
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


def test_a_folder_that_is_not_there_is_named(tmp_path):
    """It is not made: the path may be a slip."""
    with pytest.raises(FileNotFoundError, match="no such folder") as caught:
        write_atomically(tmp_path / "nowhere" / "plan.json", "")
    assert caught.value.filename == str(tmp_path / "nowhere")
