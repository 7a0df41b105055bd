"""Memory and time together."""

import json

import pytest

import schedsim
from schedsim.clusters import Degrees, Training, get_architecture, get_fabric, predict
from schedsim.errors import SchedsimError


def test_a_prediction_and_its_document():
    """One rank of each stage; the document is JSON and says the same."""
    found = predict(
        get_architecture("llama3.2-1b"),
        Degrees(fsdp=4, pipeline=2),
        Training(seq=1024, batch=4, num_micro_batches=4),
        get_fabric("h100-80gb"),
    )
    assert [rank.rank for rank in found.ranks] == [0, 1]
    assert found.tokens == 4 * 1024 * 4
    document = json.loads(json.dumps(found.document()))
    assert document["reserved_bytes"] == found.reserved_bytes >= found.peak_bytes
    assert [rank["pipeline_rank"] for rank in document["ranks"]] == [0, 1]
    assert 0 < found.mfu < found.fabric.efficiency
    assert "llama3.2-1b on 8 devices" in str(found)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"dispatcher": "deepep"}, "--dispatcher does nothing: each rank holds all experts"),
        ({"hidden_exchange": True}, "--hidden-exchange does nothing: each rank"),
        ({"uneven": 1.5}, "--uneven does nothing: each rank"),
        ({"expert": 4, "hidden_exchange": True}, "there is one micro-batch"),
        ({"expert": 4, "uneven": 40.0}, "--uneven 40 is taken as 4: all tokens"),
        ({"expert": 4, "uneven": 1.5, "dispatcher": "deepep"}, ""),
    ],
)
def test_settings_of_experts_that_a_step_does_not_follow_are_said(settings, says):
    """In a line each; a search chooses among such steps, so that they are no error."""
    words = {"fsdp": 4, "seq": 512, **settings}
    found = schedsim.cluster("mixtral-8x7b", **words)
    assert len(found.notes) == bool(says)
    assert all(says in note for note in found.notes)
    assert found.document()["notes"] == list(found.notes)
    if "is taken as" in says:
        same = schedsim.cluster("mixtral-8x7b", **(words | {"uneven": 4.0}))
        assert (same.step_s, same.reserved_bytes) == (found.step_s, found.reserved_bytes)


def test_many_ranks_cost_what_one_of_each_stage_costs():
    """The number of simulated ops does not depend on how many ranks are alike."""
    model, fabric = get_architecture("llama3.2-1b"), get_fabric("h100-80gb")
    runs = {
        predict(model, Degrees(fsdp=n), Training(seq=256), fabric).time.timeline.num_runs
        for n in (8, 1024, 16384)
    }
    assert len(runs) == 1


def test_links_that_are_assumed_are_said():
    """Of a device without an entry of its own; a device of the table says nothing."""
    for device, says in (("rtx4090", "450 GB/s inside nodes of 8"), ("a100-80gb", "")):
        found = schedsim.cluster("llama3.2-1b", devices=2, seq=512, device=device)
        assert says in " ".join(found.notes)
        assert bool(found.notes) == bool(says)


def test_8_bits_are_refused_before_their_layers_are_written():
    """On a device without a rate for them, whatever is kept."""
    with pytest.raises(SchedsimError, match="--float8: no rate of a100-80gb"):
        schedsim.cluster(
            "llama3.2-1b", device="a100-80gb", seq=512, float8=True, recompute="keep=mixed"
        )


def test_which_flash_attention_is_refused_where_none_runs():
    """Attention that writes its weights has no other kernel."""
    words = {"devices": 2, "seq": 512, "eager_attention": True}
    with pytest.raises(SchedsimError, match="--flash does nothing with --eager-attention"):
        schedsim.cluster("llama3.2-1b", flash=3, **words)
    assert schedsim.cluster("llama3.2-1b", **words).step_s > 0


def test_a_state_in_bf16_says_that_it_is_not_sharded():
    """`--fsdp` takes all devices by default, and would shard another state."""
    found = schedsim.cluster("llama3.2-1b", devices=8, seq=512, state="bf16")
    assert any("--state bf16 shards nothing" in line for line in found.notes)
    for words in ({"devices": 1, "state": "bf16"}, {"devices": 8}):
        assert not schedsim.cluster("llama3.2-1b", seq=512, **words).notes
