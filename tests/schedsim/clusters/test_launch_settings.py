"""Settings of frameworks."""

import tomllib

import pytest

import schedsim
from schedsim.clusters.launch_settings import FRAMEWORKS, launch_settings
from schedsim.errors import UnsupportedError

SMALL = {"seq": 512, "batch": 4, "num_micro_batches": 4}


def test_a_torchtitan_file():
    """TOML with the degrees and the order."""
    found = schedsim.cluster(
        "llama3.2-1b",
        devices=8,
        pipeline=2,
        schedule="interleaved",
        num_chunks=2,
        recompute="selective",
        compiled=True,
        **SMALL,
    )
    table = tomllib.loads(launch_settings(found, "torchtitan"))
    assert table["parallelism"]["data_parallel_shard_degree"] == 4
    assert table["parallelism"]["pipeline_parallel_schedule"] == "Interleaved1F1B"
    assert table["training"] == {"local_batch_size": 4, "global_batch_size": 16, "seq_len": 512}
    assert table["activation_checkpoint"]["mode"] == "selective"
    assert table["compile"] == {"enable": True, "components": ["model"]}


def test_megatron_flags():
    """As its command line takes them."""
    found = schedsim.cluster(
        "llama3.2-1b", devices=8, tensor=2, recompute="full:4,none:12", state="megatron", **SMALL
    )
    words = launch_settings(found, "megatron").replace(" \\\n", " ").split()
    assert words[words.index("--tensor-model-parallel-size") + 1] == "2"
    assert words[words.index("--micro-batch-size") + 1] == "1"
    assert words[words.index("--recompute-num-layers") + 1] == "4"
    assert "--sequence-parallel" in words


@pytest.mark.parametrize("framework", [*FRAMEWORKS, "other"])
def test_what_a_framework_cannot_say_is_refused(framework):
    """A policy for each rank has no word."""
    found = schedsim.cluster("llama3.2-1b", devices=4, pipeline=2, recompute="full/none", **SMALL)
    with pytest.raises(UnsupportedError):
        launch_settings(found, framework)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_policy_of_named_ops_is_refused(framework):
    """Neither framework has such a setting."""
    found = schedsim.cluster("llama3.2-1b", devices=4, recompute="keep=mixed", **SMALL)
    with pytest.raises(UnsupportedError, match="keep=mixed"):
        launch_settings(found, framework)
