"""The joint choice, against all of a small space."""

from dataclasses import replace
from itertools import product

import pytest

import schedsim
from schedsim.clusters import (
    ARCHITECTURES,
    Architecture,
    AttentionSizes,
    Training,
    choose,
    get_fabric,
    joint_choice,
    predict,
)
from schedsim.clusters.kept_names import kept_names
from schedsim.clusters.recompute_ladder import RecomputeLadder, setting
from schedsim.clusters.search_space import SearchSpace
from schedsim.clusters.stages import rank_stages, split_stages
from schedsim.clusters.step_bounds import StepBounds
from schedsim.errors import SchedsimError

TINY = Architecture("tiny", 4, 512, 8192, 2048, AttentionSizes(8, 8, 64))
# A link on which even the small layers here hide their copies.
FABRIC = replace(get_fabric("h100-80gb"), host_bytes_per_s=4e12, latency_s=1e-6)
SETTINGS = {"seq": 1024, "compiled_loss": True}
FIXED = {"context": 1, "tensor": 1}


@pytest.fixture
def tiny(monkeypatch):
    """A model of four layers, by name, on devices with a fast link to their hosts."""
    monkeypatch.setitem(ARCHITECTURES, "tiny", TINY)
    monkeypatch.setattr(joint_choice, "get_fabric", lambda *given: FABRIC)


def exhaustive(devices, batch, fixed, *, keep, offload):
    """(reserved bytes, seconds) of every candidate with every recomputation of every rank."""
    space = SearchSpace(devices, batch, fixed, Training(**SETTINGS))
    ladder = RecomputeLadder(StepBounds(TINY, FABRIC), keep=keep, offload=offload)
    for one in space.candidates(TINY, FABRIC):
        stages = split_stages(TINY, one.degrees, one.training)
        sizes = [
            max(len(stage.layers) for stage in rank_stages(stages, one.degrees, rank))
            for rank in range(one.degrees.pipeline)
        ]
        entries = ladder.entries(one.degrees, one.training)
        for places in product(range(len(entries)), repeat=one.degrees.pipeline):
            policy = "/".join(
                setting(entries, place, size) for place, size in zip(places, sizes, strict=True)
            )
            training = replace(one.training, recompute=policy)
            found = predict(TINY, one.degrees, training, FABRIC)
            yield found.reserved_bytes, found.step_s


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fixed", "keep", "offload"),
    [
        (FIXED, False, False),
        ({**FIXED, "pipeline": 1}, True, True),
    ],
    ids=["plain", "keep-and-offload"],
)
def test_as_fast_as_the_best_of_all(tiny, fixed, keep, offload):
    """At budgets from that of the leanest step to that of the largest, and below the leanest."""
    rows = sorted(exhaustive(2, 4, fixed, keep=keep, offload=offload))
    assert len(rows) >= 40
    words = {"devices": 2, "global_batch": 4, "effort": 1000, "keep": keep, **fixed, **SETTINGS}
    words["offload"] = offload
    for place in (0, len(rows) // 4, len(rows) - 1):
        budget = rows[place][0]
        found = choose("tiny", budget, **words)
        assert found.optimal
        assert found.best.reserved_bytes <= budget
        assert found.best.step_s == pytest.approx(min(s for size, s in rows if size <= budget))
    assert choose("tiny", rows[0][0] - 1, **words).best is None


@pytest.mark.slow
def test_offloading_in_a_pipeline_is_within_its_bound(tiny):
    """Every choice of every rank, against the choice made and the bound it claims."""
    fixed = {**FIXED, "pipeline": 2, "fsdp": 1}
    rows = sorted(exhaustive(2, 2, fixed, keep=False, offload=True))
    words = {"devices": 2, "global_batch": 2, "effort": 1000, "keep": False, **fixed, **SETTINGS}
    hosted = 0
    for place in (len(rows) // 5, len(rows) // 2, len(rows) * 3 // 4):
        budget = rows[place][0]
        found = choose("tiny", budget, **words)
        least_s = min(seconds for size, seconds in rows if size <= budget)
        assert found.best.reserved_bytes <= budget
        assert found.lower_bound_s <= least_s * (1 + 1e-12)
        assert least_s <= found.best.step_s * (1 + 1e-12)
        assert found.best.step_s <= choose("tiny", budget, offload=False, **words).best.step_s
        hosted += "@host" in found.best.training.recompute
    assert hosted


def test_less_effort_says_what_it_does_not_know(tiny, monkeypatch):
    """The bound is that of the best candidate left, and the step still fits."""
    monkeypatch.setattr(joint_choice, "EFFORT_LAYERS", 1)
    few = choose("tiny", 10**9, devices=4, global_batch=8, effort=1, seq=1024)
    assert few.num_simulated == 1
    assert few.best is not None
    assert few.lower_bound_s <= few.best.step_s
    assert few.best.reserved_bytes <= 10**9


@pytest.mark.slow
def test_candidates_that_are_left_are_simulated_for_their_bounds(tiny, monkeypatch):
    """A quarter of the effort: the bound is higher, and no step of the whole space is faster."""
    words = {"devices": 4, "global_batch": 8, "seq": 1024}
    budgets = [3 * 10**8, 6 * 10**8]
    whole = [choose("tiny", one, effort=1000, **words).best.step_s for one in budgets]
    few = [choose("tiny", one, effort=8, **words).lower_bound_s for one in budgets]
    assert all(bound <= best * (1 + 1e-12) for bound, best in zip(few, whole, strict=True))

    def unsimulated(search, untried, best_s, effort):
        return [one.bound_s for one in untried if one.bound_s < best_s]

    monkeypatch.setattr(joint_choice._Search, "bounds_of", unsimulated)
    plain = [choose("tiny", one, effort=8, **words).lower_bound_s for one in budgets]
    assert all(one <= other for one, other in zip(plain, few, strict=True))
    assert plain != few


@pytest.mark.slow
def test_a_search_ends_by_its_work(tiny, monkeypatch):
    """No candidate is begun after so many layers; the bound covers those that are left."""
    words = {"devices": 4, "global_batch": 8, "seq": 1024, "effort": 1000}
    whole = choose("tiny", 3 * 10**8, **words)
    monkeypatch.setattr(joint_choice, "EFFORT_LAYERS", 1 / 1000)
    little = choose("tiny", 3 * 10**8, **words)
    assert whole.num_simulated > little.num_simulated == 1
    assert whole.optimal
    assert little.lower_bound_s <= whole.best.step_s
    assert little.best is None or little.best.step_s >= whole.best.step_s


@pytest.mark.slow
def test_what_is_slower_anyway_is_not_tried_for_its_memory(tiny, monkeypatch):
    """Once enough is shown: the same step and bound, and no more ranks are simulated."""
    ranks = []
    counted = joint_choice.rank_memory
    monkeypatch.setattr(
        joint_choice, "rank_memory", lambda *given: ranks.append(given) or counted(*given)
    )
    words = {"devices": 4, "global_batch": 8, "seq": 1024, "effort": 1000}
    every = choose("tiny", 3 * 10**8, **words)
    before = len(ranks)
    monkeypatch.setattr(joint_choice, "_NUM_SHOWN", 1)
    few = choose("tiny", 3 * 10**8, **words)
    assert (few.best.step_s, few.lower_bound_s) == (every.best.step_s, every.lower_bound_s)
    assert (len(few.runners_up), few.binds) == (0, every.binds)
    assert 0 < len(ranks) - before <= before


@pytest.mark.slow
def test_a_long_pipeline_skips_what_was_too_large_elsewhere(tiny, monkeypatch):
    """Fewer ranks are simulated; the step fits, and the bound is below the best of all.

    Here the bound on memory is a tenth too low, so that more entries are tried.
    """
    ranks = []
    monkeypatch.setitem(ARCHITECTURES, "tiny", replace(TINY, num_layers=8))
    bound = StepBounds.memory_bytes
    monkeypatch.setattr(StepBounds, "memory_bytes", lambda *given: bound(*given) * 9 // 10)
    counted = joint_choice.rank_memory
    monkeypatch.setattr(
        joint_choice, "rank_memory", lambda *given: ranks.append(given) or counted(*given)
    )
    words = {"devices": 8, "global_batch": 8, "seq": 4096, "pipeline": 8, "effort": 2}
    words |= {"state": "megatron", "offload": False, "compiled_loss": True}
    loose = choose("tiny", 10**11, **words).best.reserved_bytes
    num_skipping = num_trying = 0
    for share in (6, 8):
        budget = loose * share // 10
        ranks.clear()
        every = choose("tiny", budget, **words)
        num_trying += len(ranks)
        ranks.clear()
        with monkeypatch.context() as patched:
            patched.setattr(joint_choice, "MOST_TRIED", 1)
            some = choose("tiny", budget, **words)
        num_skipping += len(ranks)
        assert (every.best is None) == (some.best is None)
        assert some.lower_bound_s <= every.lower_bound_s
        if every.best is not None:
            assert some.best.reserved_bytes <= budget
            assert some.best.step_s >= every.best.step_s * (1 - 1e-12)
    assert num_skipping < num_trying


def test_ranks_are_predicted_as_they_were_tried(tiny):
    """What the search reports of its step is what `predict` says of it."""
    found = choose("tiny", 10**9, devices=4, global_batch=8, seq=1024, pipeline=2).best
    assert found == replace(predict(TINY, found.degrees, found.training, FABRIC), time=found.time)
    assert found.time.step_s == predict(TINY, found.degrees, found.training, FABRIC).step_s


@pytest.mark.slow
def test_a_stage_recomputes_what_its_own_memory_needs(tiny):
    """The first stage of 1F1B holds more micro-batches than the last."""
    words = {"devices": 4, "global_batch": 16, "seq": 4096, "pipeline": 4, "effort": 2}
    words |= {"state": "megatron", "compiled_loss": True}
    loose = choose("tiny", 10**11, **words)
    budget = loose.best.reserved_bytes * 6 // 10
    tight = choose("tiny", budget, offload=False, **words)
    parts = tight.best.training.recompute.split("/")
    assert len(set(parts)) > 1
    assert kept_names(parts[0])
    assert parts[-1] == "none"
    hosted = choose("tiny", budget, **words).best
    assert hosted.training.recompute.split("/")[0].endswith("@host")
    assert hosted.step_s <= tight.best.step_s
    # With half of that host memory, and with none.
    most = max(rank.host_bytes for rank in hosted.ranks)
    half = choose("tiny", budget, host_bytes=most // 2, **words).best
    assert max(rank.host_bytes for rank in half.ranks) <= most // 2
    assert hosted.step_s <= half.step_s
    none = choose("tiny", budget, host_bytes=0, **words).best
    assert max(rank.host_bytes for rank in none.ranks) == 0
    assert half.step_s <= none.step_s
    with pytest.raises(SchedsimError, match="host_bytes -1 is not 0 or more"):
        choose("tiny", budget, host_bytes=-1, **words)


@pytest.mark.slow
def test_not_worse_than_the_published_settings():
    """torchtitan's Llama 3 8B on 8 devices, in this model and its memory."""
    options = {"compiled": True, "device": "h100-96gb"}
    published = schedsim.cluster("llama3-8b", fsdp=8, batch=2, recompute="selective", **options)
    found = choose(
        "llama3-8b", published.reserved_bytes, devices=8, global_batch=16, effort=3, **options
    )
    assert found.best.step_s <= published.step_s


def test_what_is_chosen_is_not_given():
    """And numbers are whole."""
    for options, says in (
        ({"recompute": "full"}, "recompute is chosen"),
        ({"global_batch": 0}, "--global-batch 0"),
        ({"tensor": 0}, "--tensor 0 is not a whole number"),
        ({"seq": 0}, "seq 0 is not a whole number"),
        ({"global_batch": 3, "tensor": 1, "pipeline": 1}, "no degrees fit 8 devices"),
        ({"fsdp": 3}, "--devices 8 is not a multiple of --fsdp 3"),
        ({"tensor": 16}, "--devices 8 is not a multiple of --tensor 16"),
        ({"state": "zero1"}, "--state 'zero1' is unknown"),
        ({"expert": 2}, "--expert 2, but .* has no experts"),
        ({"chunked_head": True}, "--chunked-head changes nothing here"),
        ({"float8": True, "device": "a100-80gb"}, "--float8: no rate of a100-80gb"),
        ({"effort": 0}, "--effort 0 is not 1 or more"),
        ({"effort": "a"}, "effort 'a' is not a whole number"),
        ({"efficiency": 2.0}, "--efficiency 2.0 is not in"),
        ({"budget_bytes": "80 things"}, "unknown unit 'things'"),
        ({"budget_bytes": -1}, "budget -1 is not a number of bytes"),
        ({"budget_bytes": None}, "budget None is not a number of bytes"),
        ({"preset": 8}, "preset 8 is not"),
    ):
        words = {"preset": "llama3.2-1b", "budget_bytes": 10**10, "devices": 8, "global_batch": 8}
        with pytest.raises(SchedsimError, match=says):
            choose(**words | options)
