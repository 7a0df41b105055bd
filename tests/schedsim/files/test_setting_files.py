"""The field ``setting`` of plan files: what is written is read, and faults have their place."""

from __future__ import annotations

import dataclasses
import json

import pytest
from four_stages import CHAIN

import schedsim
from schedsim import InvalidWorkloadError
from schedsim.dataflow.variants import StageVariant
from schedsim.files.document import from_dict, to_dict
from schedsim.files.reader import Reader
from schedsim.files.setting_files import read_setting, setting_to_dict
from schedsim.plans.levels import MemoryLevel, MemoryLevels
from schedsim.plans.links import Link
from schedsim.plans.offloading import Offloading
from schedsim.plans.setting import PLAIN, AllocatorChoice, Setting, StepChanges

SETTINGS = {
    "plain": PLAIN,
    "link": Setting(copies=Offloading(Link(64.0), Link(32.0, 0.5), host_bytes=100)),
    "levels": Setting(copies=MemoryLevels((MemoryLevel(3, 0.5, 0.25), MemoryLevel(9, 2.0, 1.0)))),
    "allocator": Setting(allocator=AllocatorChoice("best-fit", {"alignment_bytes": 4}, 50, 56, 2)),
    "step": Setting(step=StepChanges("op", "sha256:0", 12, {"head": 4}, 3, 5056)),
}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_every_setting_survives_a_file(setting):
    """What is read is what was written."""
    plan = dataclasses.replace(schedsim.plan(CHAIN, 60), setting=setting)
    again = from_dict(json.loads(json.dumps(to_dict(plan))))
    assert again.setting == setting
    assert again == plan


def test_variants_survive_a_file():
    """They are whole in it, as the workload may not have them any more."""
    int8 = StageVariant("int8", "quantize", saved_bytes=8)
    stages = tuple(schedsim.Stage(f"s{i}", 1, 2, 4, 20, variants=(int8,)) for i in range(4))
    plan = schedsim.plan(schedsim.Chain("varied", 4, stages), 56, allow=("quantize",))
    assert plan.variants
    assert from_dict(json.loads(json.dumps(to_dict(plan)))).setting == plan.setting


def test_a_plain_plan_says_nothing():
    """And only what differs is in a file."""
    assert setting_to_dict(PLAIN) == {}
    assert list(setting_to_dict(SETTINGS["link"])) == ["link"]


LINK = {"bytes_per_s": 64.0, "latency_s": 0.0}
LEVEL = {"num_slots": 3, "write_s": 0.5, "read_s": 0.25}


@pytest.mark.parametrize(
    ("item", "path", "says"),
    [
        ({"link": {"d2h": LINK, "h2d": LINK}, "levels": []}, "setting.levels", "both a link and"),
        ({"link": {"d2h": LINK}}, "setting.link.h2d", "missing field"),
        ({"link": {"d2h": LINK, "h2d": {**LINK, "bytes_per_s": -1}}},
         "setting.link.h2d.bytes_per_s", "-1.0 is not a bandwidth"),
        ({"link": {"d2h": {**LINK, "latency_s": -1}, "h2d": LINK}},
         "setting.link.d2h.latency_s", "-1"),
        ({"link": {"d2h": LINK, "h2d": LINK, "host_bytes": 0.5}},
         "setting.link.host_bytes", "0.5 is not a whole number"),
        ({"link": {"d2h": {**LINK, "speed": 1}, "h2d": LINK}},
         "setting.link.d2h.speed", "unknown field"),
        ({"levels": [LEVEL, {**LEVEL, "num_slots": -1}]}, "setting.levels[1]", "num_slots -1"),
        ({"levels": [{**LEVEL, "read_s": "1"}]}, "setting.levels[0].read_s", "'1'"),
        ({"allocator": {"name": "best-fit", "options": []}}, "setting.allocator.options",
         "not an object"),
        ({"allocator": {"name": "best-fit", "options": {}, "num_emptied": -1}},
         "setting.allocator.num_emptied", "-1 is not at least 0"),
        ({"step": {"level": "stage", "chunk": {}}}, "setting.step.level", "'stage' is unknown"),
        ({"step": {"level": "op", "chunk": {}, "accumulate": 0}}, "setting.step.accumulate",
         "0 is not at least 1"),
        ({"step": {"level": "op", "chunk": {}, "compiled": 1}}, "setting.step.compiled",
         "1 is not true or false"),
        ({"variants": [{"name": "v", "kind": "quantize", "stage": "s0"}]},
         "setting.variants[0].saved_bytes", "missing field"),
        ({"colour": "red"}, "setting.colour", "unknown field"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(item, path, says):
    """By its whole path in the plan file."""
    with pytest.raises(InvalidWorkloadError) as caught:
        read_setting(Reader(item, "setting"))
    assert caught.value.path == path
    assert says in caught.value.message
