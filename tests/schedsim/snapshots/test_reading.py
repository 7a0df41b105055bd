"""A snapshot's file, read without running anything that it might hold."""

from __future__ import annotations

import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshot_files import MIB, block, document, event, recorded, written

from schedsim.errors import SchedsimError
from schedsim.snapshots import peak_of, read_snapshot


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


@pytest.mark.parametrize("value", [float("inf"), -1, 2**63, 10**400, True, "7", None, [], {}])
@pytest.mark.parametrize(
    "place",
    [
        ("segments", 0, "total_size"),
        ("segments", 0, "blocks", 0, "size"),
        ("segments", 0, "blocks", 0, "requested_size"),
        ("device_traces", 0, 0, "size"),
    ],
)
def test_sizes_that_no_device_has_are_refused(tmp_path, place, value):
    """A size is a number of bytes."""
    content, _ = recorded(1, 3, 30)
    holder = content
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    with pytest.raises(SchedsimError, match="is no memory snapshot"):
        read_snapshot(written(tmp_path, content))


@pytest.mark.parametrize("key", ["filename", "name"])
def test_frames_are_of_text(tmp_path, key):
    """A list that holds itself many times has no end when it is written out."""
    nested = []
    for _ in range(60):
        nested = [nested, nested]
    frame = {"filename": "a.py", "line": 1, "name": "forward", key: nested}
    events = [event("alloc", 0, 512, [frame])]
    with pytest.raises(SchedsimError, match="a list that is no text"):
        read_snapshot(written(tmp_path, document([], events)))


def test_notes_on_tensors_are_no_events_of_memory(tmp_path):
    """PyTorch 2.15 records what a program notes on a tensor."""
    content, _ = recorded(1, 3, 30)
    expected = peak_of(read_snapshot(written(tmp_path, content)))
    content["device_traces"][0].append(event("annotate", 0, 0))
    found = peak_of(read_snapshot(written(tmp_path, content)))
    assert found.blocks == expected.blocks


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    """No other error comes out of a broken file, and cutting one off breaks it."""
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        file.write(data)
        file.flush()
        with pytest.raises(SchedsimError):
            read_snapshot(file.name)


@pytest.mark.parametrize("state", ["active_awaiting_free", "active_pending_free"])
def test_a_block_that_waits_for_a_stream_is_in_use(tmp_path, state):
    """As PyTorch's versions spell it."""
    waiting = {**block(0, 1000, True), "state": state}
    content = document([(0, 2 * MIB, [waiting])], [])
    [segment] = read_snapshot(written(tmp_path, content)).segments
    assert segment.blocks[0].live
