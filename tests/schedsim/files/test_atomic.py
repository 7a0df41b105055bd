"""Writing files whole: all of the content, or the file as it was."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_named_by_its_path(tmp_path, monkeypatch):
    """The system's error of a write knows no path, and that of a rename only the temporary one."""
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically("/dev/full", "text")
    assert caught.value.filename == "/dev/full"

    def full(_handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(tmp_path / "x.json", "text")
    assert caught.value.filename == str(tmp_path / "x.json")
    assert list(tmp_path.iterdir()) == []
