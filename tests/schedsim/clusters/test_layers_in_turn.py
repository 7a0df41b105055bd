"""Layers on two streams, in the order in which a rank runs them."""

import pytest

from schedsim.clusters.end_seconds import EndSeconds, LayerOnce
from schedsim.clusters.layer_spans import LayerSpan
from schedsim.clusters.layers_in_turn import LayerCosts, LayersInTurn

LAYER = LayerCosts(
    1.0, 2.0, LayerSpan(1.0, 1.0), LayerSpan(2.0, 2.0), 3.0, 2.0, 0, 0, frozenset(), 0, 0, 0
)


def step(gather_s, reduce_s, **settings):
    """Three layers of a second forward and two backward; unpacking and packing take no time."""
    unit = LayerOnce(gather_s, 0.0, 0.0, reduce_s, 0.0, 0.25)
    words = {"gathers": True, "stays": False, **settings}
    return LayersInTurn([LAYER] * 3, [unit] * 3, EndSeconds(), 10.0, **words)


@pytest.mark.parametrize(
    ("gather_s", "reduce_s", "found"),
    [
        (0.0, 0.0, 9.0),
        # A gather before the first layer begins; all others are beside computation.
        (0.5, 0.0, 9.5),
        # A reduction at the end.
        (0.0, 0.5, 9.5),
        # Links are the longer: three gathers forward, two back, and three reductions; the first
        # gather back waits for nothing.
        (10.0, 10.0, 80.0),
    ],
)
def test_what_waits_for_what(gather_s, reduce_s, found):
    """Beside the optimizer."""
    assert step(gather_s, reduce_s).least_s(1) == 10.0 + found


def test_hidden_messages_take_processors():
    """Of 5 gathers and 3 reductions of half a second, a quarter; or what is waited for."""
    assert step(0.5, 0.5, sending=0.5).least_s(1) == 10.0 + 9.0 + 2.0
    assert step(0.5, 0.5, sending=0.1).least_s(1) == 10.0 + 10.0
    assert step(0.5, 0.5, sending=0.5, gathers=False).least_s(1) == 10.0 + 9.0


def test_replicas_average_on_the_stream_that_reduces_where_both_are_between_nodes():
    """Of three layers, an average of 5 s each, behind reductions of 10."""
    unit = LayerOnce(10.0, 0.0, 0.0, 10.0, 5.0, 0.25)
    for averages, found in ((False, 80.0), (True, 95.0)):
        words = {"gathers": True, "stays": False, "averages": averages}
        made = LayersInTurn([LAYER] * 3, [unit] * 3, EndSeconds(), 10.0, **words)
        assert made.least_s(1) == 10.0 + found


def test_products_in_waves_lose_half_of_the_messages_beside_them():
    """Of 6 s of messages, 4 are beside the 3 s that are no products, which take a third longer."""
    beside = {"sending": 0.125, "all_sending": 0.25, "in_waves": True}
    assert step(0.75, 0.75, **beside).least_s(1) == 10.0 + 9.0 + 0.125 * 4 + 0.5 * 2
    # As many as fit beside the others lose no more than without waves.
    assert step(0.375, 0.375, **beside).least_s(1) == 10.0 + max(9.0 + 0.125 * 3, 9.0 + 0.75)


def test_units_that_stay_are_gathered_once_and_summed():
    """Each further micro-batch takes its computation, and the sums of its gradients."""
    stays = step(0.5, 0.5, stays=True)
    assert stays.least_s(3) - stays.least_s(2) == 9.0 + 3 * 0.25
    assert step(0.5, 0.5).least_s(3) - step(0.5, 0.5).least_s(2) > 9.0
    assert step(5.0, 5.0, gathers=False).least_s(2) == 10.0 + 2 * 9.0
