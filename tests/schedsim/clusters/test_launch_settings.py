"""Settings of frameworks: in their words, and starting the step that was predicted."""

import shlex
import tomllib

import pytest

import schedsim
from schedsim.clusters import Training, choose
from schedsim.clusters.launch_settings import FRAMEWORKS, launch_settings, plain_policies
from schedsim.errors import UnsupportedError

SMALL = {"seq": 512, "batch": 4, "num_micro_batches": 4}
# Fields of torchtitan's JobConfig (torchtitan/config/job_config.py, October 2025), of the tables
# that are written.
TORCHTITAN = {
    "model": {"name", "flavor", "converters"},
    "optimizer": {"implementation", "early_step_in_backward"},
    "training": {"local_batch_size", "global_batch_size", "seq_len", "dtype"},
    "parallelism": {
        "data_parallel_replicate_degree",
        "data_parallel_shard_degree",
        "fsdp_reshard_after_forward",
        "tensor_parallel_degree",
        "enable_async_tensor_parallel",
        "pipeline_parallel_degree",
        "module_fqns_per_model_part",
        "pipeline_parallel_schedule",
        "pipeline_parallel_microbatch_size",
        "context_parallel_degree",
        "expert_parallel_degree",
        "expert_tensor_parallel_degree",
        "expert_parallel_comm_backend",  # since December 2025
    },
    "activation_checkpoint": {"mode", "selective_ac_option"},
    "compile": {"enable", "components"},
    "quantize": {"linear"},
}
FLOAT8 = {
    "enable_fsdp_float8_all_gather",
    "precompute_float8_dynamic_scale_for_fsdp",
    "filter_fqns",
}


def titan(preset="llama3.2-1b", **options):
    """The file of a step, parsed; no field that torchtitan does not have."""
    table = tomllib.loads(launch_settings(schedsim.cluster(preset, **options), "torchtitan"))
    for title, rows in table.items():
        assert rows.keys() <= TORCHTITAN[title]
    return table


def megatron(preset="llama3.2-1b", **options):
    """The flags of a step: name -> value, or "" of a switch."""
    text = launch_settings(schedsim.cluster(preset, **options), "megatron")
    words = shlex.split(text.replace("\\\n", ""))
    found = {}
    for one in words:
        if one.startswith("--"):
            name = one
            found[name] = ""
        else:
            found[name] = one
    return found


def test_a_torchtitan_file():
    """Degrees, order, and the modules of each stage in the order of the stages."""
    table = titan(
        devices=8,
        pipeline=2,
        schedule="interleaved",
        num_chunks=2,
        recompute="selective",
        compiled=True,
        **SMALL,
    )
    assert table["parallelism"]["data_parallel_shard_degree"] == 4
    assert table["parallelism"]["pipeline_parallel_schedule"] == "Interleaved1F1B"
    parts = table["parallelism"]["module_fqns_per_model_part"]
    assert len(parts) == 4
    layers = [f"layers.{k}" for k in range(16)]
    assert [name for part in parts for name in part] == [
        "tok_embeddings",
        *layers,
        "norm",
        "output",
    ]
    rows = table["training"]
    assert (rows["local_batch_size"], rows["global_batch_size"], rows["seq_len"]) == (4, 16, 512)
    assert table["activation_checkpoint"] == {"mode": "selective", "selective_ac_option": "op"}
    assert table["compile"] == {"enable": True, "components": ["model"]}


def test_micro_batches_without_a_pipeline_are_accumulated():
    """torchtitan runs a local batch at once, and accumulates up to the global batch."""
    table = titan(devices=8, **SMALL)
    rows = table["training"]
    assert (rows["local_batch_size"], rows["global_batch_size"]) == (1, 32)


@pytest.mark.slow
def test_the_model_and_its_8_bits():
    """By torchtitan's names; a model that it does not have is a comment."""
    words = {"devices": 64, "batch": 1, "compiled": True, "float8": True, "tensor": 8}
    table = titan("llama3-70b", seq=512, recompute="full", **words)
    converters = ["quantize.linear.float8"]
    assert table["model"] == {"name": "llama3", "flavor": "70B", "converters": converters}
    assert table["quantize"]["linear"]["float8"].keys() == FLOAT8
    text = launch_settings(schedsim.cluster("mistral-7b", devices=8, seq=512), "torchtitan")
    assert text.startswith("# torchtitan has no model")


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True])
def test_experts_on_tensor_parallel_ranks_are_said(whole):
    """Split or whole: the frameworks differ in what they do when nothing is said."""
    words = {"preset": "mixtral-8x7b", "devices": 8, "tensor": 2, "expert": 2, "seq": 512}
    words["whole_experts"] = whole
    assert titan(**words)["parallelism"]["expert_tensor_parallel_degree"] == (1 if whole else 2)
    flags = megatron(state="megatron", **words)
    assert flags.get("--expert-tensor-parallel-size") == ("1" if whole else None)
    assert "expert_tensor_parallel_degree" not in titan(devices=8, tensor=2, seq=512)["parallelism"]


def test_megatron_is_told_what_runs_beside_computation():
    """Neither its reductions nor its gathers do by themselves; its loss is fused if it is told."""
    flags = megatron(devices=8, state="megatron", seq=512, compiled_loss=True)
    for name in ("--overlap-grad-reduce", "--overlap-param-gather", "--cross-entropy-loss-fusion"):
        assert name in flags
    alone = megatron(devices=8, tensor=8, state="megatron", seq=512)
    assert "--overlap-grad-reduce" not in alone
    assert "--cross-entropy-loss-fusion" not in alone


def test_what_shards_nothing_is_launched_so():
    """A state in bf16 is whole on every rank; torchtitan would shard it over `fsdp`."""
    rows = titan(devices=8, state="bf16", seq=512)["parallelism"]
    assert (rows["data_parallel_replicate_degree"], rows["data_parallel_shard_degree"]) == (8, 1)
    with pytest.raises(UnsupportedError, match="no plain data parallelism beside other degrees"):
        titan(devices=8, tensor=2, state="bf16", seq=512)
    with pytest.raises(UnsupportedError, match="another mixed precision"):
        titan(devices=8, fsdp=1, replicate=8, seq=512)


def test_the_allocator_is_set_beside_the_settings():
    """By a variable of the environment, in a comment."""
    for framework, state in (("torchtitan", "fsdp2"), ("megatron", "megatron")):
        found = schedsim.cluster("llama3.2-1b", devices=8, seq=512, expandable=True, state=state)
        lines = launch_settings(found, framework).splitlines()
        assert "# with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in lines


def test_replicas_are_instances_of_megatrons_optimizer():
    """FSDP2 has none there; torchtitan has a degree."""
    words = {"devices": 8, "replicate": 2, "seq": 512}
    flags = megatron(state="megatron", **words)
    assert flags["--num-distributed-optimizer-instances"] == "2"
    assert titan(**words)["parallelism"]["data_parallel_replicate_degree"] == 2
    with pytest.raises(UnsupportedError, match="no replicas of FSDP2"):
        megatron("llama3-8b", **words)


def test_whole_sequences_are_megatrons():
    """Without its switch; torchtitan has no word for them."""
    words = {"devices": 8, "tensor": 2, "seq": 512, "whole_sequence": True}
    assert "--sequence-parallel" not in megatron(state="megatron", **words)
    with pytest.raises(UnsupportedError, match="no whole sequences"):
        titan(**words)


def test_orders_are_those_that_pytorch_knows():
    """Every order that is written is in its table; ZB-H1 is not, and is refused."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    for words in ({}, {"schedule": "gpipe"}, {"schedule": "interleaved", "num_chunks": 2}):
        table = titan(devices=2, pipeline=2, **SMALL, **words)
        schedules.get_schedule_class(table["parallelism"]["pipeline_parallel_schedule"])
    with pytest.raises(UnsupportedError, match="zero-bubble"):
        titan(devices=2, pipeline=2, schedule="zero-bubble", **SMALL)


def test_megatron_flags():
    """As its command line takes them."""
    found = megatron(
        devices=8, tensor=2, recompute="full:4,none:12", state="megatron", regather=True, **SMALL
    )
    assert found["--tensor-model-parallel-size"] == "2"
    assert found["--micro-batch-size"] == "1"
    assert (found["--recompute-method"], found["--recompute-num-layers"]) == ("block", "4")
    assert {"--sequence-parallel", "--use-distributed-optimizer"} <= found.keys()
    assert "--use-torch-fsdp2" not in found


@pytest.mark.slow
def test_megatron_stages_are_those_of_the_prediction():
    """One letter a layer; spare layers stand in the middle, as they were simulated."""
    words = {"devices": 32, "tensor": 8, "pipeline": 4, "state": "megatron", "seq": 512, "batch": 4}
    found = megatron("llama3-405b", recompute="full", **words)
    stages = found["--pipeline-model-parallel-layout"].split("|")
    assert [stage.count("t") for stage in stages] == [31, 32, 32, 31]
    assert (stages[0][0], stages[-1][-1]) == ("E", "L")


def test_fsdp2_of_megatron_goes_without_its_distributed_optimizer():
    """Its arguments are checked against one another: what it refuses is refused here."""
    found = megatron("llama3-8b", devices=8, seq=512)
    assert {"--use-torch-fsdp2", "--no-gradient-accumulation-fusion"} <= found.keys()
    assert "--use-distributed-optimizer" not in found
    assert found["--ckpt-format"] == "torch_dist"
    for words in ({"pipeline": 2, "devices": 4, **SMALL}, {"devices": 4, "seq": 512}):
        with pytest.raises(UnsupportedError, match="FSDP2"):  # a pipeline; tied embeddings
            megatron("llama3.2-1b", **words)


def test_megatron_sends_parts_beside_products():
    """Where the prediction does."""
    step = {"devices": 8, "tensor": 4, "seq": 512, "state": "megatron"}
    assert "--tp-comm-overlap" not in megatron("llama3-8b", **step)
    assert "--tp-comm-overlap" in megatron("llama3-8b", overlap_tensor=True, **step)


def test_gradients_in_16_bits_are_megatrons():
    """torchtitan has no such setting."""
    step = {"devices": 8, "seq": 512, "reduce_bf16": True}
    assert "--grad-reduce-in-bf16" in megatron("llama3-8b", **step)
    with pytest.raises(UnsupportedError, match="no reduction in 16 bits"):
        launch_settings(schedsim.cluster("llama3-8b", **step), "torchtitan")


@pytest.mark.parametrize("framework", [*FRAMEWORKS, "other"])
def test_what_a_framework_cannot_say_is_refused(framework):
    """A policy for each rank has no word."""
    words = {"state": "megatron"} if framework == "megatron" else {}
    found = schedsim.cluster(
        "llama3.2-1b", devices=4, pipeline=2, recompute="full/none", **SMALL, **words
    )
    with pytest.raises(UnsupportedError):
        launch_settings(found, framework)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"recompute": "keep=mixed"}, "keep=mixed"),
        ({"recompute": "full@host"}, "offloading"),
        ({"compiled_loss": False, "loss_chunks": 2}, "chunks"),
    ],
)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_settings_without_a_word_are_refused(framework, options, says):
    """Neither framework has such a setting."""
    found = schedsim.cluster("llama3-8b", devices=8, **SMALL, **options)
    with pytest.raises(UnsupportedError, match=says):
        launch_settings(found, framework)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "state"), [("torchtitan", "fsdp2"), ("megatron", "megatron")]
)
def test_a_search_for_a_framework_finds_what_it_can_say(framework, state):
    """At a budget at which ranks of a pipeline would otherwise recompute each as they need."""
    step = {"pipeline": 4, "seq": 2048, "state": state, "compiled_loss": True}
    full = schedsim.cluster(
        "llama3.2-1b", batch=8, num_micro_batches=8, recompute="full", **step
    ).reserved_bytes
    words = {**step, "devices": 4, "tensor": 1, "context": 1, "global_batch": 8, "effort": 8}
    tight = choose("llama3.2-1b", full, framework=framework, **words)
    assert tight.best.training.recompute != "none"
    assert launch_settings(tight.best, framework)


EXPERTS = {"fsdp": 8, "expert": 8, "seq": 512, "batch": 2, "num_micro_batches": 2}


def test_tokens_are_dispatched_in_the_words_of_each_framework():
    """DeepEP by its name; the exchange beside another micro-batch is Megatron's alone."""
    settings = titan("qwen3-30b-a3b", dispatcher="deepep", **EXPERTS)["parallelism"]
    assert settings["expert_parallel_comm_backend"] == "deepep"
    assert "expert_parallel_comm_backend" not in titan("qwen3-30b-a3b", **EXPERTS)["parallelism"]
    own = {"state": "megatron", "dispatcher": "deepep", "hidden_exchange": True}
    flags = megatron("qwen3-30b-a3b", **own, **EXPERTS)
    assert flags["--moe-token-dispatcher-type"] == "flex"
    assert flags["--moe-flex-dispatcher-backend"] == "deepep"
    assert "--overlap-moe-expert-parallel-comm" in flags
    step = schedsim.cluster("qwen3-30b-a3b", hidden_exchange=True, **EXPERTS)
    with pytest.raises(UnsupportedError, match="no exchange of tokens beside"):
        launch_settings(step, "torchtitan")


def test_megatron_hides_no_exchange_of_layers_that_run_again():
    """``transformer_config.py`` refuses it; a search for it recomputes nothing then."""
    words = {**EXPERTS, "state": "megatron", "hidden_exchange": True}
    step = schedsim.cluster("qwen3-30b-a3b", recompute="full", **words)
    with pytest.raises(UnsupportedError, match="where layers run again"):
        launch_settings(step, "megatron")
    hides = Training(hidden_exchange=True)
    assert plain_policies("megatron", hides) == ("none",)
    assert "full" in plain_policies("megatron", Training())
    assert "full" in plain_policies("torchtitan", hides)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_rank_with_all_experts_sends_no_tokens(framework):
    """Its settings name no dispatcher: Megatron refuses one there."""
    state = {"state": "megatron"} if framework == "megatron" else {}
    step = schedsim.cluster("qwen3-30b-a3b", fsdp=8, seq=512, dispatcher="deepep", **state)
    assert "deepep" not in launch_settings(step, framework)
