"""Embedding and head."""

from schedsim.clusters import Degrees, Libraries, Training, get_architecture, get_fabric
from schedsim.clusters.rank_memory import issue_step

MODEL, FABRIC = get_architecture("llama3-8b"), get_fabric("h100-80gb")


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


def test_a_pipeline_that_returns_no_outputs_holds_none():
    """The logits of each micro-batch are gone after its loss; otherwise all stay."""
    degrees, each = Degrees(fsdp=2, pipeline=2), 2 * 4096 * MODEL.vocab
    left = []
    for dropped in (False, True):
        training = Training(
            seq=4096, batch=4, num_micro_batches=4, libraries=Libraries(dropped_outputs=dropped)
        )
        step = issue_step(MODEL, degrees, training, FABRIC, 1).simulated()
        held = step.live_tensors(step.num_runs - 1)
        left.append(sum(one.size_bytes for one in held if one.name.startswith("L ")))
    assert left == [4 * each, 0]


def test_the_backward_of_an_embedding_sums_in_single_precision():
    """By tens of tokens of one word, and by words; few tokens have a kernel without."""
    for seq, parts in ((2048, 0), (8192, 820 + 8192)):
        training = Training(seq=seq, recompute="full")
        step = issue_step(MODEL, Degrees(fsdp=64), training, FABRIC, 0).simulated()
        workspace = step._workspace[step.run_names.index("embed' 0")]
        assert workspace == 4 * parts * MODEL.hidden
