"""Writing files whole: all of the content, or nothing."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Put `content` at `path` through a temporary file beside it and a rename.

    A symbolic link is followed, and stays a link. A path that is not a regular file, such as a
    pipe, is written to directly. An existing file keeps its permissions. An error of the system
    names `path`, not the temporary file.
    """
    data = content.encode() if isinstance(content, str) else content
    target = Path(path)
    try:
        _write(target, data)
    except OSError as error:
        if error.errno is None or (error.filename and ".schedsim-" not in str(error.filename)):
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error


def _write(target: Path, data: bytes) -> None:
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    target = target.resolve()
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(target.parent))
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".schedsim-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, _permissions(target))  # mkstemp's 0600 is not what a user expects
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _permissions(target: Path) -> int:
    """The permissions of `target`, or those of a new file."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
