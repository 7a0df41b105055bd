"""Files: what is malformed is refused by the path of its field; the rest survives round trips."""

from __future__ import annotations

import copy
import gzip
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

import schedsim
from schedsim import Chain, Graph, InvalidWorkloadError, Stage
from schedsim.files.document import MAX_FILE_BYTES, from_dict, to_dict
from schedsim.files.workload_files import workload_hash

CHAIN = to_dict(Chain("c", 4, (Stage("s0", 1, 2, 4, 10), Stage("s1", 1, 2, 4, 10))))
GRAPH = {
    "schema": "schedsim.graph/1",
    "name": "g",
    "static_bytes": 0,
    "inputs": {"x": 4},
    "ops": [
        {"name": "f", "phase": "forward", "time_s": 1, "workspace_bytes": 0, "reads": ["x"],
         "writes": {"y": 4}, "optional": [], "once": False},
        {"name": "b", "phase": "backward", "time_s": 1, "workspace_bytes": 0, "reads": ["y"],
         "writes": {"z": 4}, "optional": [], "once": False},
    ],
    "results": ["z"],
}  # fmt: skip
PLAN = to_dict(schedsim.plan(from_dict(CHAIN), 26))
MISSING = object()


def changed(document, path, value):
    """A copy of `document` with the field at `path` replaced, or removed."""
    result = copy.deepcopy(document)
    place = result
    for key in path[:-1]:
        place = place[key]
    if value is MISSING:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return result


@pytest.mark.parametrize(
    ("document", "path", "value", "where"),
    [
        (CHAIN, ["schema"], "schedsim.chain/2", "schema"),
        (CHAIN, ["schema"], MISSING, "schema"),
        (CHAIN, ["name"], 7, "name"),
        (CHAIN, ["name"], "", "name"),
        (CHAIN, ["stages"], [], "stages"),
        (CHAIN, ["stages"], {}, "stages"),
        (CHAIN, ["stages", 1], 3, "stages[1]"),
        (CHAIN, ["stages", 1, "forward_s"], MISSING, "stages[1].forward_s"),
        (CHAIN, ["stages", 1, "forward_s"], "1", "stages[1].forward_s"),
        (CHAIN, ["stages", 1, "forward_s"], -1, "stages[1].forward_s"),
        (CHAIN, ["stages", 1, "forward_s"], 10**400, "stages[1].forward_s"),
        (CHAIN, ["stages", 0, "output_bytes"], -1, "stages[0].output_bytes"),
        (CHAIN, ["stages", 0, "output_bytes"], 1.5, "stages[0].output_bytes"),
        (CHAIN, ["stages", 0, "output_bytes"], True, "stages[0].output_bytes"),
        (CHAIN, ["stages", 0, "output_bytes"], 2**60, "stages[0].output_bytes"),
        (CHAIN, ["stages", 0, "saved_bytes"], 3, "stages[0].saved_bytes"),
        (CHAIN, ["stages", 1, "name"], "s0", "stages[1].name"),
        (CHAIN, ["stages", 0, "ouput_bytes"], 1, "stages[0].ouput_bytes"),
        (CHAIN, ["static_byte"], 1, "static_byte"),
        (GRAPH, ["ops", 0, "phase"], "sideways", "ops[0].phase"),
        (GRAPH, ["ops", 1, "name"], "f", "ops[1].name"),
        (GRAPH, ["ops", 1, "reads"], ["w"], "ops[1].reads[0]"),
        (GRAPH, ["ops", 1, "reads"], ["y", "y"], "ops[1].reads[1]"),
        (GRAPH, ["ops", 1, "reads"], "y", "ops[1].reads"),
        (GRAPH, ["ops", 1, "reads"], [1], "ops[1].reads[0]"),
        (GRAPH, ["ops", 0, "reads"], ["z"], "ops[0].reads[0]"),
        (GRAPH, ["ops", 1, "writes"], {"y": 4}, "ops[1].writes.y"),
        (GRAPH, ["ops", 1, "writes"], {"x": 4}, "ops[1].writes.x"),
        (GRAPH, ["ops", 1, "writes", "z"], 0.5, "ops[1].writes.z"),
        (GRAPH, ["ops", 1, "optional"], ["y"], "ops[1].optional[0]"),
        (GRAPH, ["ops", 1, "once"], 1, "ops[1].once"),
        (GRAPH, ["inputs", "x"], -4, "inputs.x"),
        (GRAPH, ["results"], ["q"], "results[0]"),
        (PLAN, ["status"], "great", "status"),
        (PLAN, ["schedule"], None, "schedule"),
        (PLAN, ["schedule", 2], 5, "schedule[2]"),
        (PLAN, ["workload", "kind"], "tree", "workload.kind"),
        (PLAN, ["makespan_s"], None, "makespan_s"),
        (PLAN, ["budget_bytes"], -1, "budget_bytes"),
        (PLAN, ["candidates"], [{}], "candidates[0].planner"),
        (PLAN, ["seed"], 1.5, "seed"),
    ],
)  # fmt: skip
def test_malformed_fields_are_named(document, path, value, where):
    """The error carries the path of the field that is wrong."""
    with pytest.raises(InvalidWorkloadError) as caught:
        from_dict(changed(document, path, value))
    assert caught.value.path == where


def test_cycles_are_called_cycles():
    """An op that reads what a later op makes from it is a cycle; otherwise the order is wrong."""
    cyclic = changed(GRAPH, ["ops", 0, "reads"], ["z"])
    with pytest.raises(InvalidWorkloadError, match="a cycle"):
        from_dict(cyclic)
    reordered = changed(GRAPH, ["ops"], GRAPH["ops"][::-1])
    with pytest.raises(InvalidWorkloadError, match="stands later"):
        from_dict(reordered)


def test_a_giant_file_is_refused_unread(tmp_path):
    """Size is looked at first: a sparse file of a gigabyte is refused at once."""
    file = tmp_path / "giant.json"
    with file.open("wb") as stream:
        stream.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(InvalidWorkloadError, match="more than the limit"):
        schedsim.load(file)


@given(seed=st.integers(0, 10**9))
@settings(max_examples=examples(400))
def test_mutated_documents_are_read_or_refused(seed):
    """Random damage to a valid document gives an object or an InvalidWorkloadError."""
    rng = random.Random(seed)
    document = copy.deepcopy(rng.choice([CHAIN, GRAPH, PLAN]))
    odd = [None, True, -1, 0, 1.5, "x", "", [], {}, [1], {"x": 1}, 2**70, float("inf")]
    for _ in range(rng.randint(1, 3)):
        place = document
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(place[key], dict | list) and rng.random() < 0.8:
                place = place[key]
                continue
            if rng.random() < 0.2:
                del place[key]
            else:
                place[key] = rng.choice(odd)
            break
    try:
        result = from_dict(document)
    except InvalidWorkloadError:
        return
    assert isinstance(result, Chain | Graph | schedsim.Plan)


@pytest.mark.parametrize("field", ["input_bytes", "static_bytes", "loss_s"])
def test_hash_follows_the_content_and_not_the_name(field):
    """Any size or time changes the hash; the name does not."""
    chain = from_dict(CHAIN)
    renamed = from_dict(CHAIN | {"name": "other"})
    changed_chain = from_dict(CHAIN | {field: 3})
    assert workload_hash(renamed) == workload_hash(chain)
    assert workload_hash(changed_chain) != workload_hash(chain)


def test_saving_is_all_or_nothing(tmp_path, monkeypatch):
    """A failure while writing leaves the old file, and no temporary one."""
    file = tmp_path / "chain.json"
    chain = from_dict(CHAIN)
    schedsim.save(chain, file)
    before = file.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        schedsim.save(chain, file)
    assert file.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["chain.json"]


def test_a_compressed_file_is_read(tmp_path):
    file = tmp_path / "chain.json.gz"
    file.write_bytes(gzip.compress(json.dumps(CHAIN).encode()))
    assert schedsim.load(file) == from_dict(CHAIN)


@pytest.mark.parametrize("spoil", [lambda data: data[:-9], lambda data: data[:3] + b"no gzip"])
def test_a_broken_compressed_file_is_named(tmp_path, spoil):
    file = tmp_path / "chain.json.gz"
    file.write_bytes(spoil(gzip.compress(json.dumps(CHAIN).encode())))
    with pytest.raises(InvalidWorkloadError, match=r"chain\.json\.gz: gzip cannot read it"):
        schedsim.load(file)
