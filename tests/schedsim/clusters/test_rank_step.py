"""The step of a rank: its ops are legal, whole, and in the right numbers."""

import pytest

from schedsim.clusters import Degrees, Training, get_architecture, get_fabric
from schedsim.clusters.rank_memory import rank_actions
from schedsim.clusters.rank_step import RankStep, kind_of
from schedsim.clusters.stages import rank_stages, split_stages
from schedsim.dataflow.graph import Graph
from schedsim.simulation.simulator import simulate


def written(name, degrees, training, rank=0):
    """The step of a rank, as its host issues it."""
    model = get_architecture(name)
    stages = rank_stages(split_stages(model, degrees, training), degrees, rank)
    fabric = get_fabric("h100-80gb")
    step = RankStep(model, degrees, training, fabric, stages, one_stream=True)
    return step.write(rank_actions(degrees, training, rank))


CASES = [
    ("llama3.2-1b", Degrees(fsdp=8), Training(seq=512, recompute="selective")),
    ("llama3.2-1b", Degrees(fsdp=4, tensor=2), Training(seq=512, batch=2, num_micro_batches=2)),
    ("llama3.2-1b", Degrees(fsdp=2, replicate=2), Training(seq=512, recompute="full:3,none:2")),
    ("llama3.2-1b", Degrees(pipeline=4), Training(seq=512, batch=8, num_micro_batches=8)),
    (
        "llama3.2-1b",
        Degrees(pipeline=4),
        Training(seq=512, batch=8, schedule="gpipe", num_micro_batches=8, recompute="full"),
    ),
    (
        "llama3.2-1b",
        Degrees(pipeline=2),
        Training(seq=512, batch=4, schedule="interleaved", num_chunks=2, num_micro_batches=4),
    ),
    (
        "llama3.2-1b",
        Degrees(pipeline=4),
        Training(
            seq=512, batch=8, schedule="zero-bubble", num_micro_batches=8, recompute="selective"
        ),
    ),
    ("mixtral-8x7b", Degrees(fsdp=8, expert=8), Training(seq=256, recompute="selective")),
    ("llama3.2-1b", Degrees(fsdp=8), Training(seq=512, recompute="selective@host2")),
    ("mixtral-8x7b", Degrees(fsdp=8, expert=8), Training(seq=256, recompute="keep=mixed@host")),
    (
        "llama3.2-1b",
        Degrees(pipeline=4),
        Training(
            seq=512, batch=8, schedule="zero-bubble", num_micro_batches=8, recompute="none@host"
        ),
    ),
    (
        "gpt-22b",
        Degrees(tensor=8, pipeline=2),
        Training(seq=256, batch=2, state="megatron", regather=True, recompute="full@host"),
    ),
    ("deepseek-v2-lite", Degrees(fsdp=4, expert=4), Training(seq=256, recompute="full")),
    (
        "gpt-22b",
        Degrees(tensor=8),
        Training(seq=256, state="megatron", regather=True, eager_attention=True, recompute="core"),
    ),
    (
        "llama3.2-3b",
        Degrees(),
        Training(seq=256, state="bf16", optimizer_in_backward=True, loss_chunks=4),
    ),
]


@pytest.mark.parametrize(("name", "degrees", "training"), CASES)
def test_steps_are_legal_on_every_rank(name, degrees, training):
    """The simulator takes them; every layer runs once a micro-batch, forward and backward."""
    for rank in {0, degrees.pipeline - 1}:
        step = written(name, degrees, training, rank)
        graph = Graph("rank", step.graph.ops, results=step.graph.results)  # checked, op by op
        run = simulate(graph, step.schedule)
        counts = {}
        for op in run.run_names:
            if not op.endswith(" w"):
                counts[op.split()[0]] = counts.get(op.split()[0], 0) + 1
        layers = sum(len(stage.layers) for stage in step.stages.values())
        micro = training.micro_batches(degrees)
        assert counts["q'"] == layers * micro
        assert counts["optimizer"] == 1


def test_full_recomputation_repeats_the_forward_and_its_gather():
    """Each product but the last two of a layer, and each gather but the last layer's."""
    step = written("llama3.2-1b", Degrees(fsdp=8), Training(seq=512, recompute="full"))
    names = [step.ops[k].name for k in step.runs]
    assert names.count("gather W 3 0") == 2
    assert names.count("gather W 15 0") == 1
    assert names.count("gate 3 0") == 2
    assert names.count("down 3 0") == 1
    once = written("llama3.2-1b", Degrees(fsdp=8), Training(seq=512, zero_stage=2))
    assert [once.ops[k].name for k in once.runs].count("gather W 3") == 1


def test_kinds_of_tensors():
    """By the first word of the name."""
    assert kind_of("W 3 0") == "gathered parameters"
    assert kind_of("A q 3 0") == "activations"
    assert kind_of("workspace of q") == "workspaces"
