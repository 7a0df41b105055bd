"""torchtitan: the very layers that the plan recomputes, by their number in the whole model."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType

import pytest
from small_exports import CHAIN, loose, tight

from schedsim.export.segments import layer_range
from schedsim.export.to_torchtitan import policy

LAYERS = layer_range(CHAIN)


@pytest.fixture
def written(monkeypatch):
    """The names that generated code makes, beside a stand-in for torchtitan's own class."""

    class FullAC:
        @dataclass(kw_only=True, slots=True)
        class Config:
            pass

        def _wrap_block(self, module, *, base_fqn=None):
            return ("checkpointed", module)

    module = ModuleType("torchtitan.distributed.activation_checkpoint")
    module.FullAC = FullAC
    for name in ("torchtitan", "torchtitan.distributed"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def run(text: str) -> dict:
        names: dict = {}
        exec(compile(text, "generated", "exec"), names)
        return names

    return run


@pytest.mark.parametrize("made", [tight, loose])
def test_layers_are_those_whose_forward_runs_twice(written, made):
    """Numbered from the first layer of the model, embedding apart; each is wrapped, no other."""
    exported = made("torchtitan")
    names = written(exported.text)
    ran = exported.schedule.names
    expected = [i for i, stage in enumerate(LAYERS) if ran.count(f"F{stage}") > 1]
    assert names["CHECKPOINTED"] == expected
    assert names["NUM_LAYERS"] == len(LAYERS) == 4
    planned = names["PlannedAC"]()
    for i in range(4):
        wrapped = planned._wrap_block("block", base_fqn=f"model.layers.{i}")
        assert wrapped == (("checkpointed", "block") if i in expected else "block")
    with pytest.raises(ValueError, match="layer 4, but the plan was made for 4"):
        planned._wrap_block("block", base_fqn="layers.4")


def test_a_pipeline_stage_knows_its_layers_by_name(written):
    """The number is the last part of the path, whatever stands before it."""
    planned = written(policy("m", [11], 12))["PlannedAC"]()
    assert planned._wrap_block("b", base_fqn="stage2.layers.11") == ("checkpointed", "b")
    assert planned._wrap_block("b", base_fqn="stage2.layers.1") == "b"
    assert planned.Config() is not None
