"""The pipeline that options mean, and its plan: made, or replayed and checked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from four_stages import CHAIN

from schedsim.cli.given.made_pipeline import make_pipeline, plan_pipeline, planned
from schedsim.cli.given.pipeline_options import PipelineRequest, with_defaults
from schedsim.cli.given.workload_source import Source
from schedsim.cli.options.formula import no_options
from schedsim.errors import InvalidScheduleError, SchedsimError, UnsupportedError
from schedsim.files.document import save
from schedsim.plans.links import Link


def source(*files: str, **options) -> Source:
    return Source(files, no_options(options))


def options(**more):
    return with_defaults({"num_devices": 2, "num_micro_batches": 4, **more})


def test_options_make_the_pipeline(folder):
    """Cuts from layers by stage, a link with its latency, what stages free and wait for."""
    given = options(
        partition="1,3", link="4B/s", link_latency_s=0.5, free_outputs=True, waits_for_gradient=True
    )
    pipeline, lines = make_pipeline(source("chain.json"), given)
    assert (pipeline.cuts, pipeline.num_micro_batches) == ((0, 1, 4), 4)
    assert pipeline.link == Link(4, 0.5)
    assert pipeline.free_outputs
    assert pipeline.waits_for_gradient
    assert lines[-1] == "pipeline: 2 devices, 4 micro-batches, 1f1b, messages over 4 B/s + 500 ms"
    _, lines = make_pipeline(source("chain.json"), options(num_chunks=2, order="interleaved"))
    assert (
        "2 devices of 2 stages each, 4 micro-batches, interleaved, messages take no time"
        in (lines[-1])
    )


def test_a_formula_knows_more_than_a_file(folder):
    """The state of each layer, and what of a backward is for the weights."""
    pipeline, _ = make_pipeline(source(layers=2, static="auto"), options(order="zero-bubble"))
    assert sum(pipeline.layer_static_bytes) > 0
    assert pipeline.split_backward
    assert len(pipeline.weight_gradients) == 2
    plain, _ = make_pipeline(source("chain.json"), options(order="zero-bubble"))
    assert plain.split_backward
    assert not any(part.kept_bytes for part in plain.weight_gradients or ())


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"num_devices": 0}, "--stages 0 is not at least 1"),
        ({"num_micro_batches": 0}, "--micro-batches 0 is not at least 1"),
        ({"num_chunks": 0}, "--chunks 0 is not at least 1"),
        ({"link_latency_s": 1.0}, "--link-latency needs --link"),
        ({"partition": "1,2"}, "3 layers of 4"),
        ({"partition": "4,0"}, "has 4 layers of 4"),
        ({"partition": "2,1,1"}, "has 3 stages instead of 2"),
        ({"partition": "a,b"}, "neither even, nor auto, nor layers per stage"),
        ({"collectives": "1GB/s"}, "--collectives needs a transformer"),
    ],
)
def test_options_that_mean_no_pipeline(folder, more, says):
    """One line with the option."""
    with pytest.raises(SchedsimError) as caught:
        make_pipeline(source("chain.json"), options(**more))
    assert says in caught.value.message
    assert caught.value.hint


def test_a_graph_is_refused(folder):
    """It has no stages in a line."""
    save(CHAIN.graph, "graph.json")
    with pytest.raises(UnsupportedError, match="four is a graph"):
        make_pipeline(source("graph.json"), options())


@pytest.mark.parametrize(
    ("more", "budget", "says"),
    [
        ({"recompute": "some"}, None, "--recompute 'some' is unknown"),
        ({"recompute": "auto"}, None, "--recompute auto needs --mem"),
        ({"recompute": "none", "partition": "auto"}, 100, "--partition auto does not go with"),
    ],
)
def test_ways_to_recompute_that_are_none(folder, more, budget, says):
    """With what does go together."""
    given = options(**more)
    pipeline, _ = make_pipeline(source("chain.json"), replace(given, partition="even"))
    with pytest.raises(SchedsimError) as caught:
        plan_pipeline(pipeline, given, budget)
    assert says in caught.value.message


def test_a_share_is_one_of_the_fullest_device(folder):
    """As elsewhere one of the step that recomputes nothing."""
    pipeline, _ = make_pipeline(source("chain.json"), options())
    everything = plan_pipeline(pipeline, options(recompute="none"), None)
    whole = plan_pipeline(pipeline, options(), "100%")
    assert whole.budget_bytes == everything.run.peak_bytes
    assert whole.run.makespan_s == everything.run.makespan_s


@pytest.fixture
def saved(folder) -> str:
    """A plan of a pipeline in a file, with a link."""
    given = {"num_devices": 2, "num_micro_batches": 4, "link": "8B/s"}
    made = planned(PipelineRequest(source("chain.json"), None, given, None))
    Path("plan.json").write_text(json.dumps(made.document()))
    return "plan.json"


def replay(file, **given):
    return planned(PipelineRequest(source(), None, given, file))


def test_a_file_alone_makes_the_pipeline_again(saved):
    """With its workload and its link; what agrees may stand beside it."""
    document = json.loads(Path(saved).read_text())
    assert document["given"] == {"link": "8B/s"}
    for given in ({}, {"num_devices": 2, "link": "8B/s"}):
        made = replay(saved, **given)
        assert made.problems == ()
        made.check()
        assert made.plan.pipeline.link == Link(8)
        assert made.document()["step"] == document["step"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"num_devices": 4}, "--stages 4, but the plan is for 2"),
        ({"link": "9B/s"}, "--link 9B/s, but the plan is for 8B/s"),
        ({"free_outputs": True}, "--free-outputs, but the plan is for none"),
        ({"order": "gpipe"}, "--schedule gpipe, but the plan is for 1f1b"),
        ({"collectives": "1B/s"}, "--collectives 1B/s, but the plan is for none"),
        ({"recompute": "none"}, "--replay does not go with --mem or --recompute"),
    ],
)
def test_what_does_not_agree_is_refused(saved, given, says):
    """By its option, with what the plan is for."""
    with pytest.raises(SchedsimError) as caught:
        replay(saved, **given)
    assert says in caught.value.message


@pytest.mark.parametrize(("field", "factor"), [("peak_bytes", 2), ("makespan_s", 1.001)])
def test_numbers_that_the_replay_does_not_confirm(saved, field, factor):
    """Each is named; seconds within rounding pass."""
    document = json.loads(Path(saved).read_text())
    document["step"]["makespan_s"] *= 1 + 1e-12
    Path(saved).write_text(json.dumps(document))
    replay(saved).check()
    document["step"][field] *= factor
    Path(saved).write_text(json.dumps(document))
    made = replay(saved)
    assert len(made.problems) == 1
    with pytest.raises(InvalidScheduleError, match="the plan says"):
        made.check()
