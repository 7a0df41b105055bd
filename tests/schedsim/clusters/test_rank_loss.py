"""The loss: copies of the logits."""

import pytest

from schedsim.clusters import (
    Architecture,
    AttentionSizes,
    Degrees,
    Libraries,
    Training,
    get_architecture,
    get_fabric,
    rank_memory,
)
from schedsim.clusters.rank_loss import logits_copies
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


def test_a_graph_drops_what_exponents_are_made_of():
    """``(grad + exp(x)) * given``: nothing reads the log-softmax behind its exponents."""
    found, extra = logits(Degrees(fsdp=8, tensor=8), libraries=Libraries(traced=True))
    assert (found, extra) == (3 * FULL // 8, 0)


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


@pytest.mark.parametrize("degrees", [Degrees(fsdp=2), Degrees(fsdp=2, tensor=8)])
def test_megatrons_loss_has_one_copy_in_single_precision(degrees):
    """Beside the logits in the forward, beside their gradient in the backward."""
    found, extra = logits(degrees, state="megatron")
    assert (found, extra) == (1.5 * FULL // degrees.tensor, 0)


@pytest.mark.parametrize(
    ("degrees", "settings", "vocab", "published"),
    [
        (Degrees(fsdp=2, pipeline=4), {"schedule": "interleaved", "num_chunks": 8}, 131200, 56.55),
        (Degrees(fsdp=2, tensor=4), {"whole_sequence": True}, 131584, 53.22),
    ],
)
def test_megatrons_steps_as_its_own_tests_count_them(degrees, settings, vocab, published):
    """A GPT of 7B: GiB in use at the peak of the last rank.

    Megatron-LM, tests/functional_tests/test_cases/gpt/gpt3_7b_{tp1_pp4,tp4_pp1}_memory_speed.
    """
    model = Architecture(
        "gpt-7b",
        32,
        4096,
        vocab,
        16384,
        AttentionSizes(32, 8, 128, bias=True, output_bias=True),
        gated=False,
        positions=8192,
        plain_norm=True,
        dropout=True,
    )
    training = Training(
        batch=4,
        num_micro_batches=degrees.pipeline if degrees.pipeline > 1 else 2,
        state="megatron",
        regather=True,
        fused_optimizer=True,
        **settings,
    )
    found = rank_memory(model, degrees, training, FABRIC, degrees.pipeline - 1)
    assert found.peak_bytes / 2**30 == pytest.approx(published, rel=0.03)


def test_copies_are_those_that_bounds_count():
    """Of a loss in chunks, at least."""
    for settings in ({}, {"compiled_loss": True}, {"state": "megatron"}):
        assert logits(**settings)[0] == pytest.approx(
            logits_copies(Training(**settings)) * FULL // 2, rel=1e-3
        )
    assert logits(loss_chunks=8)[0] >= logits_copies(Training(loss_chunks=8)) * FULL // 2
