"""Options: what they mean, what they contradict, what would lower the memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from small_configs import SMALL

from schedsim import Chain, Graph, SchedsimError, Schedule, simulate
from schedsim.workloads import PRESETS, WorkloadOptions, build_workload, variants


def test_layers_alone_is_said():
    """96 layers: gpt3-175b at micro-batch 1, sequence 2048 in fp16, nothing else, in one line."""
    built = build_workload(WorkloadOptions(layers=96))
    assert isinstance(built.workload, Chain)
    assert built.workload.num_stages == 96
    assert built.workload.static_bytes == 0
    assert built.assumptions[0] == (
        "96 layers of gpt3-175b, micro-batch 1, sequence 2048, fp16, eager attention, by layer, "
        "no embedding or head, static 0"
    )
    assert built.assumptions[1].startswith("model state: none")
    assert built.assumptions[2].startswith("times: roofline of a100-80gb")


@pytest.mark.parametrize("preset", list(PRESETS))
def test_every_preset_is_built(preset):
    """As a chain and as a graph with the same time, by a name that the first line repeats."""
    chain = build_workload(WorkloadOptions(preset=preset))
    graph = build_workload(WorkloadOptions(preset=preset, granularity="op"))
    assert isinstance(graph.workload, Graph)
    assert chain.workload.store_all_s == pytest.approx(graph.workload.store_all_s, rel=1e-12)
    assert chain.assumptions[0].startswith(f"{preset}, ")
    assert graph.assumptions[0].endswith("by op")


def test_given_sizes_are_used_and_said():
    """Layers, width and heads change the model; Llama's MLP width keeps its proportion.

    11008 / 4096 x 2048 = 5504, rounded up to a multiple of 256: 5632.
    """
    built = build_workload(WorkloadOptions(preset="llama2-7b", layers=3, hidden=2048, heads=16))
    assert built.workload.num_stages == 3 + 2
    said = "3 layers of llama2-7b resized to width 2048 with 16 heads and MLP width 5632"
    assert built.assumptions[0].startswith(said)


def test_fewer_heads_mean_fewer_key_heads():
    """Keys and values keep their width when a model without grouped queries gets fewer heads."""
    sizes = []
    for heads in (32, 16):
        built = build_workload(WorkloadOptions(preset="llama2-7b", layers=1, heads=heads, batch=2))
        sizes.append(built.workload.stages[1].saved_bytes)
    # Half the heads: half of the 4 bytes of statistics per row and head, 4096 rows, 2 sequences.
    assert sizes[0] - sizes[1] == 4 * 16 * 4096 * 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layers": 0}, "--layers 0"),
        ({"layers": 2, "batch": -1}, "--batch -1"),
        ({"layers": 2, "seq": 0}, "--seq 0"),
        ({"layers": 2, "hidden": 0}, "--hidden 0"),
        ({"layers": 2, "heads": 7}, "--hidden 12288 is not a multiple of --heads 7"),
        ({"layers": 2, "tensor_parallel": 7}, "--tensor-parallel 7"),
        ({"layers": 2, "tensor_parallel": 0}, "--tensor-parallel 0"),
        ({"layers": 2, "sequence_parallel": True}, "--sequence-parallel"),
        (
            {"layers": 2, "sequence_parallel": True, "tensor_parallel": 8, "seq": 100},
            "--seq 100",
        ),
        ({"layers": 2, "attention": "fast"}, "--attention 'fast'"),
        ({"layers": 2, "dtype": "fp8"}, "--dtype 'fp8'"),
        ({"layers": 2, "granularity": "atom"}, "--granularity 'atom'"),
        ({"layers": 2, "device": "h1000"}, "--device 'h1000'"),
        ({"layers": 2, "efficiency": 0.0}, "--efficiency 0"),
        ({"layers": 2, "efficiency": float("nan")}, "--efficiency nan"),
        ({"layers": 2, "static": -1}, "--static -1"),
        ({"layers": 2, "static": "some"}, "--static 'some'"),
        ({"layers": 2, "zero_stage": 1}, "--zero 1 .* --static auto"),
        ({"layers": 2, "static": "auto", "zero_stage": 1}, "--zero 1 .* --data-parallel"),
        ({"layers": 2, "static": "auto", "optimizer": "adamm"}, "--optimizer 'adamm'"),
        ({"preset": "llama2-70b", "tensor_parallel": 16}, "key heads 8 .* --tensor-parallel 16"),
        ({"preset": "llama2-70b", "hidden": 7680, "heads": 60}, "--heads 60 .* 8 key heads"),
        ({"preset": "resnet-50", "heads": 4}, "--heads 4"),
        ({"preset": "resnet-50", "tensor_parallel": 2}, "--tensor-parallel 2"),
        ({"preset": "resnet-50", "sequence_parallel": True}, "--sequence-parallel"),
        ({"preset": "resnet-50", "granularity": "block"}, "--granularity block"),
        ({"preset": "resnet-50", "batch": 0}, "--batch 0"),
        ({"preset": "vit-b16", "seq": 10}, "--seq 10"),
        ({}, "no workload"),
    ],
)
def test_contradictions_are_named(options, says):
    """The message names the option and its value, and the hint says what to do."""
    with pytest.raises(SchedsimError, match=says) as caught:
        build_workload(WorkloadOptions(**options))
    assert caught.value.hint


@pytest.mark.parametrize(("slip", "meant"), [("gpt2xl", "gpt2-xl"), ("lama2-7b", "llama2-7b")])
def test_near_misses_are_suggested(slip, meant):
    """The hint offers the preset nearest to what was written."""
    with pytest.raises(SchedsimError, match=slip) as caught:
        build_workload(WorkloadOptions(preset=slip))
    assert repr(meant) in caught.value.hint


def test_variants_lower_the_memory():
    """Each change offered keeps no more bytes than the original."""
    options = WorkloadOptions(layers=4, batch=2)
    chain = build_workload(options).workload
    most = simulate(chain, Schedule.store_all(chain)).peak_bytes
    labels = []
    for label, changed in variants(options):
        labels.append(label)
        other = build_workload(changed).workload
        assert simulate(other, Schedule.store_all(other)).peak_bytes <= most
    assert labels == [
        "--granularity block",
        "--attention flash",
        "--batch 1",
        "--tensor-parallel 2",
        "--tensor-parallel 4",
        "--tensor-parallel 8",
    ]


@pytest.mark.parametrize(
    ("options", "degrees"),
    [
        # 25 heads cannot be split; 12 heads cannot by 8.
        ({"preset": "gpt2-xl"}, []),
        ({"preset": "vit-b16"}, [2, 4]),
        # 2052 tokens can be split over the sequence by 4, not by 8.
        ({"layers": 2, "seq": 2052, "tensor_parallel": 2, "sequence_parallel": True}, [4]),
        ({"preset": "resnet-50"}, []),
        ({"synthetic": "uniform", "layers": 4}, []),
    ],
)
def test_variants_can_be_built(options, degrees):
    """Only degrees of tensor parallelism that the model and its other options allow."""
    found = variants(WorkloadOptions(**options))
    for _, changed in found:
        build_workload(changed)
    labels = [label for label, _ in found if label.startswith("--tensor-parallel")]
    assert labels == [f"--tensor-parallel {degree}" for degree in degrees]


def test_importing_is_light():
    """Neither scipy, numba, matplotlib nor torch comes with the workloads."""
    heavy = "{'scipy', 'numba', 'matplotlib', 'torch'}"
    code = f"import schedsim.workloads, sys; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_a_configuration_s_formula_leaves_out_is_told(tmp_path):
    """Formats, fields, and windows where the sequence is longer; nothing of models without any."""
    path = tmp_path / "config.json"
    fields = {"quantization_config": {"quant_method": "fp8"}, "sliding_window": 64}
    path.write_text(json.dumps({"model_type": "mistral", **SMALL, **fields}))

    def lines(seq, preset=f"hf:{path}", attention=None):
        options = WorkloadOptions(preset=preset, seq=seq, attention=attention)
        return build_workload(options).assumptions[2:]

    times, note = lines(128)
    assert times.endswith(", attention with its window of 64 tokens in 3 layers")
    assert note.startswith("quantization_config is not used")
    assert "attention" not in lines(64)[0]
    assert lines(4096, "gpt-oss-20b")[0].endswith("with its window of 128 tokens in 12 layers")
    eager = lines(128, attention="eager")[0]
    assert eager.endswith(
        "eager attention computes what its window of 64 tokens in 3 layers leaves out, too"
    )
    assert len(lines(128, "llama3-8b")) == 1
