"""``schedsim cluster``."""

import json

import pytest
from option_samples import CLUSTER, together, words

from schedsim.cli.app import run

SMALL = ["cluster", "--preset", "llama3.2-1b", "--devices", "8", "--seq", "512"]


def test_what_is_shown(capsys):
    """Reserved bytes, time, kinds; 0 where it fits."""
    assert run(SMALL) == 0
    out = capsys.readouterr().out
    assert "1,235,814,400 parameters" in out
    assert "by the allocator on the fullest rank" in out
    assert "optimizer state" in out


def test_json_and_a_budget(capsys):
    """One document; 1 where it does not fit."""
    assert run([*SMALL, "--pipeline", "2", "--batch", "2", "--mem", "1GB", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["budget_bytes"] == 10**9
    assert [rank["pipeline_rank"] for rank in document["ranks"]] == [0, 1]


def test_what_a_step_does_not_follow_is_said(capsys):
    """A dispatcher where each rank holds all experts."""
    words = ["cluster", "--preset", "mixtral-8x7b", "--devices", "64", "--seq", "512"]
    run([*words, "--dispatcher", "deepep"])
    assert "note: --dispatcher does nothing" in capsys.readouterr().out
    run([*words, "--expert", "8", "--dispatcher", "deepep"])
    assert "note" not in capsys.readouterr().out


@pytest.mark.slow
def test_recomputation_that_fits(capsys):
    """Every layer by itself, within the budget; 1 where nothing fits."""
    asked = [*SMALL, "--batch", "8", "--recompute", "fit", "--json", "--mem"]
    assert run([*asked, "15GB"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "keep=" in document["training"]["recompute"]
    assert document["reserved_bytes"] <= 15 * 10**9
    assert run([*asked, "5GB"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["training"]["recompute"] == "full"


def test_a_trace(tmp_path, capsys):
    """The trace shows one rank with its streams; a refused step writes none."""
    path = tmp_path / "rank.trace.json"
    assert run([*SMALL, "-o", str(path)]) == 0
    names = {
        event["args"].get("name")
        for event in json.loads(path.read_text())["traceEvents"]
        if event["name"] == "thread_name"
    }
    assert names == {"compute", "link:shard"}
    assert f"wrote {path}" in capsys.readouterr().err
    other = tmp_path / "other.trace.json"
    assert run([*SMALL, "--loss-chunks", "2", "--launch", "torchtitan", "-o", str(other)]) == 2
    assert not other.exists()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--tensor", "3"], "--devices 8 is not a multiple of --tensor 3"),
        (["--pipeline", "8", "--batch", "3"], "not a multiple of 8 micro-batches"),
        (["--recompute", "half"], "--recompute 'half'"),
        (["--recompute", "keep=gat"], "no layer of llama3.2-1b has such an op"),
        (["--device", "h1000"], "unknown"),
        (["--batch", "0"], "batch 0 is not a whole number, 1 or more"),
        (["--seq", "0"], "seq 0 is not"),
        (["--loss-chunks", "0"], "--loss-chunks 0 is not"),
        (["--zero", "0"], "--zero 0 is not"),
        (["--fsdp", "0"], "--fsdp 0 is not"),
        (["--network", "5"], "--network changes nothing here: 8 devices are in one node"),
        (["--tensor", "0"], "--tensor 0 is not"),
        (["--tensor", "-2"], "--tensor -2 is not"),
    ],
)
def test_errors_are_one_line(more, says, capsys):
    """Exit code 2, the option and a hint."""
    assert run([*SMALL, *more]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "hint:" in error


def config_file(folder, **fields):
    """A ``config.json`` of four small layers."""
    sizes = {
        "model_type": "starcoder2",
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 5000,
    }
    path = folder / "config.json"
    path.write_text(json.dumps({**sizes, **fields}))
    return str(path)


def test_a_model_by_its_configuration(tmp_path, capsys):
    """Its parameters by hand, its source, a search, and settings for a framework.

    A layer: 512 x (512 + 2 x 128) + 512 + 256 and 512 x 512 + 512 of attention, 2 x 512 x 2048 +
    2048 + 512 of the MLP, 2 x 1024 of the norms; 5000 x 512 of the embedding, which is the head
    too, and 1024 of the last norm.
    """
    small = ["--devices", "8", "--seq", "512"]
    preset = f"hf:{config_file(tmp_path)}"
    assert run(["cluster", "--preset", preset, *small]) == 0
    out = capsys.readouterr().out
    layer = 512 * 768 + 768 + 512 * 512 + 512 + 2 * 512 * 2048 + 2048 + 512 + 2 * 1024
    assert f"{4 * layer + 5000 * 512 + 1024:,} parameters (its config.json)" in out
    asked = [*small, "--mem", "4GB", "--global-batch", "16", "--search", "--effort", "4", "--json"]
    assert run(["cluster", "--preset", preset, *asked]) == 0
    assert json.loads(capsys.readouterr().out)["reserved_bytes"] <= 4 * 10**9
    assert run(["cluster", "--preset", "hf:mistralai/Mistral-7B-v0.1", *small]) == 0
    assert "7,241,732,096 parameters" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model_type": "mamba2"}, "a model_type of 'mamba2' has no formula"),
        ({"use_bias": False}, "use_bias False"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"num_hidden_layers": "four"}, "num_hidden_layers 'four' is not a whole number"),
        ({"hidden_act": "sillu"}, "hidden_act 'sillu' has no formula"),
        ({"sliding_window": 64, "layer_types": ["linear_attention"]}, "'linear_attention' has no"),
    ],
)
def test_a_configuration_that_has_no_formula_is_one_line(fields, says, tmp_path, capsys):
    """The field, and what it holds."""
    preset = f"hf:{config_file(tmp_path, **fields)}"
    assert run(["cluster", "--preset", preset, "--devices", "8"]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("error:") == 1
    assert not captured.out


def test_what_a_configuration_says_and_nothing_counts_is_told(tmp_path, capsys):
    """In a line each, in JSON too."""
    fields = {"quantization_config": {"quant_method": "fp8"}, "index_topk": 2048}
    words = ["--devices", "8", "--seq", "512"]
    asked = ["cluster", "--preset", f"hf:{config_file(tmp_path, **fields)}", *words]
    assert run(asked) == 0
    out = capsys.readouterr().out
    assert "note: quantization_config is not used" in out
    assert "note: of its config.json, what follows changes nothing here: index_topk" in out
    assert run([*asked, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["notes"]) == 2


@pytest.mark.parametrize("option", sorted(CLUSTER))
def test_every_option_is_seen(option, capsys):
    """Bytes or seconds differ where it is left out."""
    found = []
    without = together("cluster", option, without=option)
    if option == "--fsdp":
        without.pop("--replicate")  # what is left follows from it
    if option == "--chunks":
        without.pop("--schedule")  # one stage a device is the default order
    for given in (together("cluster", option), without):
        if option in ("--flash", "--dispatcher"):
            given["--seq"] = ("8192",)  # few tokens take as long as their bytes, or as parameters
        assert run(["cluster", *words(given), "--json"]) in (0, 1)
        found.append(json.loads(capsys.readouterr().out))
    seen = [(one["reserved_bytes"], one["peak_bytes"], one["step_s"]) for one in found]
    assert seen[0] != seen[1]


@pytest.mark.parametrize(("batch", "says"), [("1", "1 sequence of 512"), ("2", "2 sequences of")])
def test_one_sequence_is_not_several(batch, says, capsys):
    """And several are not one."""
    assert run([*SMALL, "--batch", batch]) == 0
    assert says in capsys.readouterr().out
