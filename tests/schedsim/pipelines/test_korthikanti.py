"""The configurations of Korthikanti et al. 2022 as pipelines: what the first device holds, exactly.

Section 4.2.3 and appendices B and C; the formulas per layer are tested with the transformers.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiers import slow_where

from schedsim import Chain
from schedsim.pipelines import (
    RECOMPUTE,
    make_order,
    make_pipeline,
    most_in_flight,
    run_pipeline,
)
from schedsim.workloads import PRESETS, Roofline, TransformerConfig, get_device, layer_saved_bytes
from schedsim.workloads.ops import to_chain
from schedsim.workloads.transformer import transformer_model

# Table 3: name, pipeline stages p, chunks m, micro-batch b; 8 tensor-parallel ranks everywhere.
CONFIGURATIONS = {
    "gpt-22b": (1, 1, 4),
    "gpt3-175b": (8, 3, 1),
    "mt-nlg-530b": (35, 3, 1),
    "gpt-1t": (64, 1, 1),
}
# Figure 7 by its formulas: per cent of tensor parallelism alone.
FIGURE_7 = {
    "gpt-22b": (66.8, 49.4, 16.1, 7.6),
    "gpt3-175b": (62.0, 56.5, 18.5, 8.7),
    "mt-nlg-530b": (58.3, 61.9, 20.2, 9.5),
    "gpt-1t": (58.3, 61.9, 20.2, 9.5),
}


def bare_layers(name: str, num_layers: int | None = None, **options) -> TransformerConfig:
    """The layers of a preset without embedding and head, as the formulas count them."""
    config = PRESETS[name]
    assert isinstance(config, TransformerConfig)
    return replace(
        config,
        embedding=False,
        head=False,
        tensor_parallel=8,
        batch=CONFIGURATIONS[name][2],
        num_layers=num_layers or config.num_layers,
        **options,
    )


def held_bytes(config: TransformerConfig, p: int, m: int, *, way: str = "none") -> tuple[int, int]:
    """The most that device 0 holds for backwards, and how many layers' worth that should be.

    With layers recomputed, what they are recomputed from.
    """
    chain = to_chain(transformer_model(config), Roofline(get_device("a100-80gb")))
    num_micro = p * (2 if m > 1 else 1)
    pipeline = make_pipeline(chain, p, num_micro, num_chunks=m, free_outputs=True)
    order = make_order("interleaved" if m > 1 else "1f1b", p, num_micro, m)
    per_stage = chain.num_stages // (p * m)
    run = run_pipeline(pipeline, order, [RECOMPUTE[way](per_stage)] * (p * m))
    rows = run.simulation.pool_timeline("device:0")
    kind = "saved" if way == "none" else "checkpoints"
    worth = (p * m + p - 1) * per_stage if m > 1 else p * per_stage
    # The formulas count a layer's input; the last layer's output belongs to what comes after it.
    beyond = chain.stages[-1].output_bytes if p == 1 and way == "none" else 0
    return int(rows[kind].max()) - beyond, worth


@pytest.mark.parametrize("name", FIGURE_7)
def test_relative_activation_memory(name):
    """Figure 7 from simulated steps: sequence parallelism, selective, both, full recomputation.

    Of 8 stages of one layer at the most, and of 4 layers where there is one stage: the numbers of
    stages and of layers change no ratio.
    """
    p, m = min(CONFIGURATIONS[name][0], 8), 1
    num = p if p > 1 else 4
    base, worth = held_bytes(bare_layers(name, num), p, m)
    assert base == worth * layer_saved_bytes(bare_layers(name))
    found = [
        held_bytes(bare_layers(name, num, **options), p, m)[0]
        for options in (
            {"sequence_parallel": True},
            {"attention": "selective"},
            {"attention": "selective", "sequence_parallel": True},
        )
    ]
    found.append(held_bytes(bare_layers(name, num), p, m, way="layers")[0])
    assert tuple(round(100 * size / base, 1) for size in found) == FIGURE_7[name]


@pytest.mark.parametrize(
    "name", slow_where(["gpt3-175b", "mt-nlg-530b", "gpt-1t"], lambda name: name != "gpt3-175b")
)
def test_the_first_stage_holds_all_layers_worth(name):
    """L layers' worth under 1F1B, times 1 + (p - 1) / (p m) interleaved, on the first device."""
    p, m, _ = CONFIGURATIONS[name]
    config = bare_layers(name)
    held, worth = held_bytes(config, p, m)
    assert worth == config.num_layers * (1 + (p - 1) / (p * m)) if m > 1 else config.num_layers
    one = layer_saved_bytes(config)
    # Inputs of later chunks may come before their turn: s b h of 2 bytes each.
    waiting = held - worth * one
    assert 0 <= waiting <= (0 if m == 1 else p * 2 * config.seq * config.batch * config.hidden)


@pytest.mark.parametrize("num_stages", [1, 4, 8])
def test_microbatches_in_flight(num_stages):
    """Appendix C: stage S has p - S outstanding backwards at most."""
    order = make_order("1f1b", num_stages, 3 * num_stages)
    found = most_in_flight(order)
    most = [max(count[s] for count in found[s]) for s in range(num_stages)]
    assert most == [num_stages - s for s in range(num_stages)]


@pytest.mark.slow
def test_output_deallocation():
    """Appendix B: s b h p elements, 2.73 GiB of the 530B model's first device."""
    config = bare_layers("mt-nlg-530b", 35)
    chain = to_chain(transformer_model(config), Roofline(get_device("a100-80gb")))
    held = []
    for free in (False, True):
        pipeline = make_pipeline(chain, 35, 35, free_outputs=free)
        run = run_pipeline(pipeline, make_order("1f1b", 35, 35), [RECOMPUTE["none"](1)] * 35)
        held.append(int(run.simulation.pool_timeline("device:0")["saved"].max()))
    assert held[0] - held[1] == 2 * 2048 * 20480 * 35
    assert round((held[0] - held[1]) / 2**30, 2) == 2.73


@pytest.mark.parametrize(("num_stages", "num_micro"), [(1, 1), (4, 8), (8, 8)])
def test_full_recomputation_costs_39_per_cent(num_stages, num_micro):
    """Table 4: layers of 7.7 and 11.9 ms take 39 % longer, in any pipeline that calls it late.

    7.7 / 19.6 = 39.3 %; the wait for gradients can hide a part of that.
    """
    num = 2 * num_stages
    chain = Chain.from_arrays(
        "22b",
        4,
        forward_s=[7.7e-3] * num,
        backward_s=[11.9e-3] * num,
        output_bytes=[4] * num,
        saved_bytes=[52] * num,
    )
    order = make_order("1f1b", num_stages, num_micro)
    times = {}
    for late in (False, True):
        pipeline = make_pipeline(chain, num_stages, num_micro, waits_for_gradient=late)
        for way in ("none", "layers", "stage"):
            plans = [RECOMPUTE[way](2)] * num_stages
            times[late, way] = run_pipeline(pipeline, order, plans).makespan_s
    for way in ("layers", "stage"):
        late = times[True, way] / times[True, "none"]
        assert late == pytest.approx(27.3 / 19.6)
        assert round(100 * (late - 1)) == 39
        if num_stages > 1:
            assert times[False, way] < times[True, way]
