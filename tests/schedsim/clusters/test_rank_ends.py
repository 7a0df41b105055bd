"""Embedding, head and loss."""

import pytest

from schedsim.clusters import Degrees, Training, get_architecture, get_fabric, rank_memory
from schedsim.clusters.rank_memory import issue_step

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
    assert logits(wide_logits=True, held_logits=True) == (4 * FULL, 0)


@pytest.mark.parametrize(("settings", "copies"), [({}, 1), ({"compiled_loss": True}, 1)])
def test_a_variable_holds_the_logits_of_the_step_before(settings, copies):
    """To the end of the next forward, which begins with them; the last ones outlive the step."""
    degrees, sizes = Degrees(fsdp=64), {"seq": 1024, "recompute": "full"}
    for micro_batches in (1, 3):
        training = Training(
            batch=micro_batches,
            num_micro_batches=micro_batches,
            held_logits=True,
            **sizes,
            **settings,
        )
        step = issue_step(MODEL, degrees, training, FABRIC, 0).simulated()
        first = step.run_names.index("embed 0")
        raw = 2 * 1024 * 128256
        for run, name in ((first, "L before"), (step.num_runs - 1, f"L raw {micro_batches - 1}")):
            held = {t.name: t.size_bytes for t in step.live_tensors(run) if t.name[0] == "L"}
            assert held == {name: copies * raw}


def test_a_pipeline_sums_the_whole_gradient_of_a_split_embedding():
    """On the rank that embeds, until the last backward; each rank reduces its part of it."""
    degrees = Degrees(fsdp=2, tensor=4, pipeline=2)
    training = Training(seq=4096, batch=2, recompute="full")
    step = issue_step(MODEL, degrees, training, FABRIC, 0).simulated()
    sizes = {t.name: t.size_bytes for t in step.live_tensors(step.run_names.index("embed' 1"))}
    whole = MODEL.vocab * MODEL.hidden
    assert sizes["G sum embedding 0"] == 4 * whole
    assert sizes["G embedding 1"] == 2 * whole
    reduced = step.run_names.index("pack embedding end")
    sizes = {t.name: t.size_bytes for t in step.live_tensors(reduced)}
    assert sizes["G cut embedding 1"] == sizes["RS embedding end"] == whole
    assert "G sum embedding 1" not in sizes


def test_the_backward_of_an_embedding_sums_in_single_precision():
    """By tens of tokens of one word, and by words; few tokens have a kernel without."""
    for seq, parts in ((2048, 0), (8192, 820 + 8192)):
        training = Training(seq=seq, recompute="full")
        step = issue_step(MODEL, Degrees(fsdp=64), training, FABRIC, 0).simulated()
        workspace = step._workspace[step.run_names.index("embed' 0")]
        assert workspace == 4 * parts * MODEL.hidden
