"""Memory and time together."""

import json

from schedsim.clusters import Degrees, Training, get_architecture, get_fabric, predict


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


def test_many_ranks_cost_what_one_of_each_stage_costs():
    """The number of simulated ops does not depend on how many ranks are alike."""
    model, fabric = get_architecture("llama3.2-1b"), get_fabric("h100-80gb")
    runs = {
        predict(model, Degrees(fsdp=n), Training(seq=256), fabric).time.timeline.num_runs
        for n in (8, 1024, 16384)
    }
    assert len(runs) == 1
