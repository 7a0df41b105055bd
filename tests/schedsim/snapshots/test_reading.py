"""A snapshot's file, read without running anything that it might hold."""

from __future__ import annotations

import os
import pickle

import pytest

from schedsim.errors import SchedsimError
from schedsim.snapshots import read_snapshot


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_in_a_file_is_run(tmp_path, protocol):
    """A file that names a function is refused, and the function is not called."""
    target = tmp_path / "made"
    path = tmp_path / "bad.pickle"
    path.write_bytes(pickle.dumps({"segments": [Bomb(target)]}, protocol=protocol))
    with pytest.raises(SchedsimError, match="is no memory snapshot: it names"):
        read_snapshot(path)
    assert not target.exists()
