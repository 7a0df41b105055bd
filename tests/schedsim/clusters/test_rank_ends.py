"""Embedding, head and loss."""

import pytest

from schedsim.clusters import Degrees, Training, get_architecture, get_fabric, rank_memory

MODEL, FABRIC = get_architecture("llama3-8b"), get_fabric("h100-80gb")
FULL = 4 * 8192 * 128256
"""Bytes of the logits of one sequence in fp32."""


def logits(degrees=None, **settings):
    """Bytes of logits and loss at the peak of a step of one sequence, and workspaces."""
    training = Training(recompute="full", **settings)
    kinds = rank_memory(MODEL, degrees or Degrees(fsdp=64), training, FABRIC).kinds
    return kinds["logits and loss"], kinds["workspaces"] - (32 << 20)


def test_three_copies_in_single_precision():
    """The log-softmax, the gradient of it, and that of the logits."""
    assert logits() == (3 * FULL, 0)


def test_a_split_vocabulary_has_a_fourth():
    """Exponents are a tensor of their own."""
    found, extra = logits(Degrees(fsdp=8, tensor=8))
    assert (found, extra) == (3 * FULL // 8, FULL // 8)


def test_a_compiled_loss_keeps_the_logits_alone():
    """And their gradient: both in 2 bytes, 8 bytes a row."""
    found, _ = logits(compiled_loss=True)
    assert found == pytest.approx(FULL, rel=1e-3)


def test_chunks_make_their_gradients_one_after_another():
    """The log-softmax is whole; what its backward makes is not."""
    found, _ = logits(loss_chunks=8)
    assert FULL < found < 2 * FULL


def test_a_loop_that_holds_single_precision_logits_has_a_fourth():
    """The model's output is there in the backward, and to the end of the step."""
    assert logits(wide_logits=True) == (4 * FULL, 0)
