"""What ``schedsim plan`` was asked, in one record, and what of it can have no effect."""

from __future__ import annotations

from dataclasses import replace

import schedsim
from schedsim.cli.app import run
from schedsim.dataflow.variants import StageVariant
from schedsim.files.document import save

CHAIN = schedsim.Chain.from_arrays(
    "plain", 4, forward_s=[1] * 3, backward_s=[2] * 3, output_bytes=[4] * 3, saved_bytes=[20] * 3
)


def planned(capsys, workload, tmp_path, kinds):
    """Exit code, and what was said on stderr."""
    path = tmp_path / "workload.json"
    save(workload, path)
    code = run(["plan", str(path), "--mem", "100%", "--allow", kinds])
    return code, capsys.readouterr().err


def test_kinds_that_no_variant_is_of_are_named(capsys, tmp_path):
    """In one line, before the plan; those that can be chosen are not named."""
    said = "note: --allow quantize,approx changes nothing: plain has no such variant\n"
    assert planned(capsys, CHAIN, tmp_path, "quantize,approx") == (0, said)
    assert planned(capsys, CHAIN.graph, tmp_path, "quantize,approx")[1].startswith("note: --allow ")
    stage = CHAIN.stages[0]
    variant = StageVariant("small", "quantize", saved_bytes=5)
    able = replace(CHAIN, stages=(replace(stage, variants=(variant,)), *CHAIN.stages[1:]))
    said = "note: --allow approx changes nothing: plain has no such variant\n"
    assert planned(capsys, able, tmp_path, "quantize,approx") == (0, said)
    assert planned(capsys, able, tmp_path, "quantize") == (0, "")
