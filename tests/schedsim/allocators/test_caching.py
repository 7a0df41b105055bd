"""The caching allocator against a slow one, and against what PyTorch's notes say."""

from __future__ import annotations

import numpy as np
import pytest
from allocator_requests import requests

from schedsim import SchedsimError
from schedsim.allocators import CachingOptions, play

KIB, MIB = 1 << 10, 1 << 20


def test_settings_are_written_like_the_environment_variable():
    text = "expandable_segments:True,max_split_size_mb:64,roundup_power2_divisions:4"
    assert str(CachingOptions.parse(text)) == text
    assert CachingOptions.parse("") == CachingOptions()
    sizes = np.array([1 << 20, (1 << 20) + 1, 3 << 20, (1 << 40) + 1])
    step = CachingOptions(roundup_power2_divisions=8).block_bytes(sizes)
    assert step.tolist() == [1 << 20, (1 << 20) + (1 << 17), 3 << 20, (1 << 40) + (1 << 37)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("garbage_collection_threshold:0.8", "not modelled"),
        ("max_split_size_mb:20", "not more than 20 MiB"),
        ("expandable_segments:yes", "not modelled"),
        ("roundup_power2_divisions:3", "power of two"),
    ],
)
def test_settings_that_are_refused(text, says):
    with pytest.raises(SchedsimError, match=says) as caught:
        CachingOptions.parse(text)
    assert caught.value.hint


def test_unknown_names_are_refused():
    with pytest.raises(SchedsimError, match="unknown allocator"):
        play(requests([1]), "buddy")
    with pytest.raises(SchedsimError, match="no option 'max_split'"):
        play(requests([1]), "cuda-caching", max_split=1)
    with pytest.raises(SchedsimError, match="no option"):
        play(requests([1]), "best-fit", expandable_segments=True)
