"""Where backwards begin, and what is in flight there."""

from operator import ge

import pytest

from schedsim.clusters.rank_moments import moments_of
from schedsim.pipelines import make_order


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


def held(moment):
    """What a moment holds, as numbers."""
    return (*moment.in_flight, *moment.gathered, *moment.summed, moment.num_outputs)


@pytest.mark.parametrize(
    "order", [("interleaved", 2, 4, 2), ("interleaved", 4, 8, 3), ("zero-bubble", 4, 8, 1)]
)
def test_moments_that_others_cover_are_left_out(order):
    """No moment of a stage has everything that another one has, and no moment has more than all."""
    orders = make_order(*order)
    for rank, actions in zip(moments_of(*order), orders, strict=True):
        assert {moment.stage for moment in rank} == set(range(order[3]))
        for one in rank:
            same = [held(other) for other in rank if other.stage == one.stage and other is not one]
            assert not any(all(map(ge, other, held(one))) for other in same)
        for stage in range(order[3]):
            most = max(moment.in_flight[stage] for moment in rank if moment.stage == stage)
            assert most == most_in_flight(actions, stage * order[1] + rank_of(actions, order[1]))


def rank_of(actions, num_ranks):
    """The rank that runs these actions."""
    return actions[0].stage % num_ranks


def most_in_flight(actions, stage):
    """The most micro-batches of a stage between their forward and their backward."""
    kinds = [action.kind for action in actions if action.stage == stage]
    return max(kinds[: k + 1].count("F") - kinds[: k + 1].count("B") for k in range(len(kinds)))
