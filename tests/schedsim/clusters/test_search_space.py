"""What may be chosen."""

from schedsim.clusters import Training, get_architecture, get_fabric
from schedsim.clusters.search_space import SearchSpace, spread

FABRIC = get_fabric("h100-80gb")


def candidates(name, devices, batch, fixed=None, **settings):
    """Candidates of a space, all of which are consistent."""
    space = SearchSpace(devices, batch, fixed or {}, Training(**settings))
    return list(space.candidates(get_architecture(name), FABRIC))


def test_every_candidate_has_the_devices_and_the_batch():
    """And none stands twice."""
    found = candidates("llama3-8b", 16, 32, seq=8192)
    for one in found:
        assert one.degrees.num_devices == 16
        assert one.training.batch * one.degrees.data == 32
        assert one.training.seq // one.degrees.context >= 4096
    assert len(set(found)) == len(found) > 50
    assert {one.training.schedule for one in found} == {"1f1b", "interleaved", "zero-bubble"}
    assert {one.degrees.tensor for one in found} == {1, 2, 4, 8}


def test_what_is_given_stays():
    """Degrees and settings."""
    found = candidates("llama3-8b", 16, 32, {"tensor": 4, "fsdp": 2}, compiled=True)
    assert {(one.degrees.tensor, one.degrees.fsdp) for one in found} == {(4, 2)}
    assert all(one.training.compiled for one in found)


def test_degrees_need_not_be_powers_of_two():
    """The 530B model of Korthikanti et al. had 35 stages on 280 devices: no other one fits."""
    found = candidates("gpt3-175b", 48, 48, {"tensor": 8}, seq=2048, state="megatron")
    assert {one.degrees.pipeline for one in found} == {1, 2, 3, 6}
    assert {one.training.num_micro_batches for one in found} >= {1, 3, 6, 12, 48}


def test_experts_are_split_where_there_are_any():
    """Over ranks that shard parameters."""
    found = candidates("mixtral-8x7b", 8, 8)
    assert {one.degrees.expert for one in found} == {1, 2, 4, 8}
    assert all(one.degrees.shards % one.degrees.expert == 0 for one in found)


def test_many_ranks_may_be_copies_of_a_group():
    """HSDP, where more than 64 would share parameters."""
    found = candidates("llama3-8b", 128, 128, {"tensor": 1, "pipeline": 1})
    assert {one.degrees.replicate for one in found} >= {1, 2, 16}


def test_every_second_candidate_is_of_a_family_not_seen():
    """Until none is left; what stays is in the order given, and nothing is lost."""
    found = candidates("llama3-8b", 16, 32, seq=8192)
    order = spread(found)
    assert order[0] == found[0]
    assert sorted(map(found.index, order)) == list(range(len(found)))
    assert len({one.family for one in order[:20]}) >= 10
    assert len({one.family for one in found[:20]}) < 10
    all_seen = 2 * len({one.family for one in found})
    assert [*map(found.index, order[all_seen:])] == sorted(map(found.index, order[all_seen:]))
