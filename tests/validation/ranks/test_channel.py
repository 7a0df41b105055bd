"""What ranks say to each other over their channel, and what ends it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rank_processes import run_ranks  # noqa: E402
from schedsim.validation.ranks.channel import Channel  # noqa: E402
from schedsim.validation.ranks.failures import RankError  # noqa: E402


def _exchanges(rank):
    channel = Channel.of((0, 1))
    assert Channel.of((0, 1)) is channel
    found = [
        channel.exchange("say little", rank),
        # Longer than the first message, and on one rank alone.
        [len(text) for text in channel.exchange("say much", "x" * (3000 * rank))],
        channel.from_first("tell", {"plan": rank}),
        channel.largest([rank, -rank], [0.5 * rank]),
        channel.turn,
    ]
    different = []
    for what in ("plan" if rank else "measure", "plan"):
        with pytest.raises(RankError) as error:
            channel.exchange(what, None)
        different.append(str(error.value))
    return found, different


def test_each_rank_hears_all_and_a_channel_ends_where_they_do_different_things():
    """Whatever they say later: nobody waits for an answer to something else."""
    for found, (first, second) in run_ranks(_exchanges, 2):
        assert found == [[0, 1], [0, 3000], {"plan": 0}, ([1, 0], [0.5]), 3]
        assert "rank 0: measure, rank 1: plan" in first
        assert "cannot plan together any more, as they do different things" in second
