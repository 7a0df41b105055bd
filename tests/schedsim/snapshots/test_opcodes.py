"""A pickle's opcodes, looked through before they are run."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from schedsim.errors import SchedsimError
from schedsim.snapshots import read_snapshot
from schedsim.snapshots._opcodes import BROKEN, SOUND, check_opcodes


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x80\x04})" + b"\x85" * 300_000 + b"Ns.", "nested without end"),
        (b"\x80\x04])" + b"\x94\x85h\x00\x86" * 300_000 + b"a.", "nested without end"),
        (b"\x80\x04]r\xff\xff\xff\x0f.", "broken off"),
        (b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f.", "broken off"),
        (b"\x80\x04\x95" + b"\xff" * 7 + b"\x7f].", "invalid bytecode"),
        (b"\x80\x05\x96\x01" + b"\x00" * 7 + b"a.", "more than containers"),
    ],
    ids=["tuple as a key", "tuples in a memo", "memo", "length", "frame", "bytearray"],
)
def test_pickles_that_would_end_the_process_are_refused(tmp_path, data, why):
    """The stack of the hash of a tuple in tuples, a memo of 4 GB, a text longer than any."""
    path = tmp_path / "bad.pickle"
    path.write_bytes(data)
    with pytest.raises(SchedsimError, match=why):
        read_snapshot(path)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300) | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@settings(max_examples=examples(50))
@given(plain, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_values_are_sound_and_their_beginnings_broken(value, protocol):
    """In every protocol; with the same value twice, which goes through the memo."""
    protocol = max(protocol, 3)  # before, bytes are made by a function
    data = pickle.dumps([value, value, {"again": value}], protocol=protocol)
    assert check_opcodes(data) == SOUND
    assert all(check_opcodes(data[:end]) == BROKEN for end in range(0, len(data), 7))
    assert check_opcodes(pickle.dumps(["text", 10**30, 2.5, True, {"a": (1,)}], 0)) == SOUND
