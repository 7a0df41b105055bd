"""``--accumulate`` and ``--chunk`` as they are typed."""

from __future__ import annotations

import pytest

from schedsim.cli.planning.step_options import read_accumulate, read_chunk
from schedsim.errors import SchedsimError


@pytest.mark.parametrize(
    ("text", "value"), [(None, None), ("auto", "auto"), ("1", 1), ("007", 7), ("64", 64)]
)
def test_micro_batches(text, value):
    """A number of 1 or more, or the quickest that fits."""
    assert read_accumulate(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (None, None),
        ("auto", "auto"),
        ("head=8", {"head": 8}),
        ("mlp=auto,head=2", {"mlp": "auto", "head": 2}),
    ],
)
def test_chunks(text, value):
    """The two pieces that can be computed in chunks are read."""
    assert read_chunk(text) == value


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", "", "²", "٣", "9" * 5000])
def test_what_is_no_number_of_micro_batches(text):
    """Also digits that are none to Python, and more of them than it reads."""
    with pytest.raises(SchedsimError, match=r"--accumulate .* is not understood"):
        read_accumulate(text)


@pytest.mark.parametrize("text", ["head", "head=", "head=0", "tail=2", "head=2,", "8", "mlp=²"])
def test_what_are_no_chunks(text):
    """With both forms in the hint."""
    with pytest.raises(SchedsimError, match=r"--chunk .* is not understood") as caught:
        read_chunk(text)
    assert "head=8,mlp=4" in caught.value.hint
