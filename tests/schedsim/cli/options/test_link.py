"""The options of a link: what they need, and that they are given again exactly."""

from __future__ import annotations

import pytest

from schedsim.cli.options.link import FLAGS, link_words, take_link
from schedsim.cli.options.typed_sizes import TimeType
from schedsim.errors import SchedsimError
from schedsim.units import parse_bytes

NONE = dict.fromkeys(FLAGS)


def test_only_what_is_given_is_taken():
    """Other options of the command stay where they are."""
    assert take_link({**NONE, "budget": 3}) == {}
    given = {"link": "25GB/s", "host_bytes": 10**9, "host_latency_s": None}
    assert take_link(given) == {"link": "25GB/s", "host_bytes": 10**9}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"host_bytes": 1}, "--host-mem needs a link"),
        ({"host_latency_s": 0.0}, "--host-latency needs a link"),
        ({"link": "fast"}, "'fast' is not a link"),
        ({"link": "0B/s"}, "carries nothing"),
        ({"link": "8Gb/s"}, "8Gb"),
    ],
)
def test_refused_before_anything_is_planned(given, says):
    """A latency of nothing was given, too."""
    with pytest.raises(SchedsimError) as caught:
        take_link({**NONE, **given})
    assert says in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("seconds", [0.0, 1e-5, 1.5e-6, 0.25, 1 / 3, 1.234567e-3, 5e-324])
@pytest.mark.parametrize("size", [0, 1000, 64 << 30, 2**53 - 1])
def test_the_words_give_the_very_same(seconds, size):
    """Read again as a command reads them."""
    words = link_words({"link": "pcie4", "host_bytes": size, "host_latency_s": seconds})
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert given["--link"] == "pcie4"
    assert parse_bytes(given["--host-mem"]) == size
    assert TimeType().convert(given["--host-latency"], None, None) == seconds
    assert link_words({}) == []
