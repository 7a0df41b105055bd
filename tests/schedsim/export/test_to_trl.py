"""TRL: every n-th layer, as the Trainer of transformers takes it."""

import yaml
from small_exports import CHAIN, loose, tight

import schedsim
from schedsim import simulate
from schedsim.export import export
from schedsim.export.segments import segment_schedule, singles


def test_all_layers_where_memory_is_scarce_and_none_where_it_is_not():
    """The switch alone says that nothing is checkpointed."""
    assert yaml.safe_load(loose("trl").text) == {"gradient_checkpointing": False}
    assert yaml.safe_load(tight("trl").text) == {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": False, "every_n_layers": 1},
    }


def test_every_other_layer_between():
    """From the first, as transformers counts; the peak is that of these layers."""
    schedule = segment_schedule(CHAIN, singles(range(1, 5)[::2]))
    budget = simulate(CHAIN, schedule).peak_bytes
    plan = schedsim.plan(CHAIN, budget)
    exported = export(CHAIN, plan, "trl")
    text = yaml.safe_load(exported.text)
    assert text["gradient_checkpointing_kwargs"]["every_n_layers"] == 2
    assert exported.schedule == schedule
    assert exported.peak_bytes == budget
