"""Modules that tell a stage of a pipeline what runs again: what they do when they are run."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
from small_exports import executed

from schedsim.export import stage_code

ALIKE = SimpleNamespace(makespan_s=1.5, peak_bytes=10**9)


class TransformerBlock:
    """As much of Megatron's as the function touches."""

    def __init__(self, config, num_layers, vp_stage):
        self.config, self.layers, self.vp_stage = config, [None] * num_layers, vp_stage


def model_of(*blocks):
    """A model with `blocks` and something else among its modules."""
    return SimpleNamespace(modules=lambda: [object(), *blocks])


@pytest.fixture
def megatron(monkeypatch):
    """A stand-in for megatron-core on a rank that a test sets."""
    place = SimpleNamespace(rank=0, size=2)
    state, transformer = ModuleType("parallel_state"), ModuleType("transformer_block")
    state.get_pipeline_model_parallel_rank = lambda: place.rank
    state.get_pipeline_model_parallel_world_size = lambda: place.size
    transformer.TransformerBlock = TransformerBlock
    core = ModuleType("megatron.core")
    core.parallel_state = state
    for name, module in (
        ("megatron", ModuleType("megatron")),
        ("megatron.core", core),
        ("megatron.core.transformer", ModuleType("megatron.core.transformer")),
        ("megatron.core.transformer.transformer_block", transformer),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    return place


def test_every_stage_of_every_rank_gets_its_number(megatron):
    names = executed(stage_code.megatron("m", [2, 1, 0, 1], [3, 3, 2, 2], 2, ALIKE))
    config = SimpleNamespace(recompute_num_layers=2)
    found = {}
    for rank in range(2):
        megatron.rank = rank
        blocks = [TransformerBlock(config, 3 if v == 0 else 2, v) for v in range(2)]
        names["recompute_by_stage"](model_of(*blocks))
        found |= {rank + 2 * v: block.config.recompute_num_layers for v, block in enumerate(blocks)}
    assert found == {0: 2, 1: 1, 2: 0, 3: 1}
    assert config.recompute_num_layers == 2  # that which other modules hold is left alone
    layout = names["ARGUMENTS"][names["ARGUMENTS"].index("--pipeline-model-parallel-layout") + 1]
    assert layout == "Ettt|ttt|tt|ttL"


def test_another_partition_is_refused(megatron):
    names = executed(stage_code.megatron("m", [1, 0], [3, 3], 2, ALIKE))
    config = SimpleNamespace(recompute_num_layers=1)
    with pytest.raises(ValueError, match="stage 0 has 4 layers, but the plan was made for 3"):
        names["recompute_by_stage"](model_of(TransformerBlock(config, 4, None)))
    megatron.size = 4
    with pytest.raises(ValueError, match="4 pipeline ranks, but the plan was made for 2"):
        names["recompute_by_stage"](model_of(TransformerBlock(config, 3, None)))


def test_layers_of_a_stage_run_again_and_keep_their_names():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    names = executed(stage_code.torch("m", [(0, 2), ()], [3, 1]))
    for stage, expected in ((0, [2, 1, 2]), (1, [1])):
        layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()) for _ in expected
        )
        before, runs = list(layers.state_dict()), [0] * len(expected)
        for i, layer in enumerate(layers):

            def count(module, inputs, i=i, runs=runs):
                runs[i] += 1

            layer.register_forward_pre_hook(count)
        names["checkpoint_stage"](layers, stage)
        assert list(layers.state_dict()) == before
        x = torch.ones(2, 4, requires_grad=True)
        for layer in layers:
            x = layer(x)
        x.sum().backward()
        assert runs == expected
    with pytest.raises(ValueError, match="stage 1 has 3 layers"):
        names["checkpoint_stage"](torch.nn.ModuleList([torch.nn.Linear(1, 1)] * 3), 1)
