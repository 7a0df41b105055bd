"""A snapshot's file, read without running anything that it might hold."""

from __future__ import annotations

import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshot_files import written

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


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        {"segments": [], "device_traces": [[{"action": "explode", "addr": 0, "size": 1}]]},
        {"segments": [{"device": 0}], "device_traces": [[]]},
        {"segments": 3, "device_traces": [[]]},
    ],
)
def test_other_files_are_refused(tmp_path, content):
    """With the way to make one for a hint."""
    with pytest.raises(SchedsimError, match="is no memory snapshot") as caught:
        read_snapshot(written(tmp_path, content))
    assert "_record_memory_history" in caught.value.hint


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    """No other error comes out of a broken file, and cutting one off breaks it."""
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        file.write(data)
        file.flush()
        with pytest.raises(SchedsimError):
            read_snapshot(file.name)
