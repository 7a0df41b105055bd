"""What settings take out of a search is said."""

import pytest

from schedsim.clusters import Training, choose, get_architecture, get_fabric
from schedsim.clusters.narrowed_space import narrowings
from schedsim.clusters.search_space import SearchSpace

FABRIC = get_fabric("h100-80gb")


def lines(name="llama3-8b", fixed=None, **settings):
    """Of 16 devices and 32 sequences."""
    space = SearchSpace(16, 32, fixed or {}, Training(**settings))
    return narrowings(space, get_architecture(name), FABRIC)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, ()),
        ({"compiled": True, "compiled_loss": True, "seq": 4096}, ()),
        ({"reduce_bf16": True}, ("--reduce-bf16 leaves --pipeline 1, --zero 3",)),
        (
            {"overlap_tensor": True, "state": "megatron", "compiled": True},
            ("--overlap-tensor leaves --tensor 2 or more",),
        ),
        (
            {"chunked_head": True, "loss_chunks": 8},
            ("--chunked-head leaves --pipeline 1",),
        ),
        (
            {"regather": True, "whole_sequence": True},
            ("--regather and --whole-sequence leave --tensor 2 or more",),
        ),
        (
            {"optimizer_in_backward": True, "state": "bf16"},
            ("--optimizer-in-backward leaves --pipeline 1, --micro-batches 1",),
        ),
    ],
)
def test_what_a_setting_leaves_is_said(settings, found):
    """By the first degrees that tell what is left from what is not."""
    assert lines(**settings) == found


def test_a_degree_that_is_given_is_no_narrowing():
    """Nothing is left out beside it."""
    assert lines(fixed={"tensor": 2, "pipeline": 1}, overlap_tensor=True, state="megatron") == ()


def test_a_hidden_exchange_leaves_one_order_of_pipelines():
    """Megatron has no other."""
    found = lines("mixtral-8x7b", hidden_exchange=True)
    assert found == ("--hidden-exchange leaves --schedule interleaved",)


def test_a_search_says_what_it_leaves_out():
    """Beside what it found."""
    found = choose(
        "llama3.2-1b", "80GB", devices=8, global_batch=8, seq=1024, effort=1, reduce_bf16=True
    )
    assert found.narrowed == ("--reduce-bf16 leaves --pipeline 1, --zero 3",)
