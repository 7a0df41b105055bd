"""Where backwards begin, and what is in flight there."""

import pytest

from schedsim.clusters.rank_moments import moments_of


@pytest.mark.parametrize("rank", range(4))
def test_1f1b_holds_one_micro_batch_for_each_rank_behind(rank):
    """Also beside the gradients of earlier ones, once the pipeline is full."""
    found = moments_of("1f1b", 4, 8, 1)[rank]
    assert max(moment.in_flight for moment in found) == (4 - rank,)
    assert any(moment.in_flight == (4 - rank,) and moment.summed == (True,) for moment in found)


def test_gpipe_holds_all():
    """The first backward begins after the last forward."""
    assert max(moment.in_flight for moment in moments_of("gpipe", 2, 6, 1)[0]) == (6,)


def test_without_a_pipeline_one_is_in_flight():
    """A single micro-batch meets no gradients of others; the second does."""
    [one] = moments_of("1f1b", 1, 1, 1)[0]
    assert (one.in_flight, one.summed, one.num_outputs) == ((1,), (False,), 1)
    assert any(moment.summed == (True,) for moment in moments_of("1f1b", 1, 2, 1)[0])


def test_moments_that_others_cover_are_left_out():
    """No moment of a stage has everything that another one has."""
    for rank in moments_of("interleaved", 2, 4, 2):
        assert {moment.stage for moment in rank} == {0, 1}
        for one in rank:
            assert not any(other is not one and other.covers(one) for other in rank)
