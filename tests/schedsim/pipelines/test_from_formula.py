"""What a formula says of pipelines: state, collectives, split backwards, selective layers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedsim.errors import SchedsimError
from schedsim.pipelines.from_formula import (
    layer_collectives,
)
from schedsim.plans.links import Link
from schedsim.workloads import (
    TransformerConfig,
    layer_saved_bytes,
    transformer_model,
)

SIZES = {"name": "small", "num_layers": 2, "hidden": 256, "num_heads": 4, "seq": 128}


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_collectives_of_layers_and_blocks(dtype):
    """Two all-reduces a layer each way, one a block; none at the ends, none without ranks."""
    config = TransformerConfig(
        **SIZES, tensor_parallel=4, embedding=True, head=True, vocab=64, dtype=dtype
    )
    size = 128 * 256 * (2 if dtype == "fp16" else 4)
    one = 1e-4 + 2 * 3 / 4 * size / 1e9
    link = Link(1e9, 1e-4)
    blocks = layer_collectives(config, link, blocks=True)
    assert [round(both.forward_s / one, 9) for both in blocks] == [0, 1, 1, 1, 1, 0]
    layers = layer_collectives(config, link, blocks=False)
    assert [round(both.backward_s / one, 9) for both in layers] == [0, 2, 2, 0]
    assert len(layers) == len(transformer_model(config).stages)
    with pytest.raises(SchedsimError, match="tensor-parallel"):
        layer_collectives(replace(config, tensor_parallel=1), link, blocks=True)


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_selective_layers(ranks, sequence_parallel):
    """s b h (10 + 24 / t), or 34 / t with sequence parallelism; the core's forward runs again."""
    if sequence_parallel and ranks == 1:
        return
    eager = TransformerConfig(**SIZES, tensor_parallel=ranks, sequence_parallel=sequence_parallel)
    selective = replace(eager, attention="selective")
    sbh = 128 * 256
    want = 34 * sbh // ranks if sequence_parallel else sbh * 10 + sbh * 24 // ranks
    assert layer_saved_bytes(selective) == want

    def flops(config: TransformerConfig, phase: str) -> int:
        layer = transformer_model(config).stages[0]
        return sum(op.flops for op in getattr(layer, phase))

    assert flops(selective, "forward") == flops(eager, "forward")
    # q k^T, 2 b s^2 h, softmax and its dropout, 5 and 1 per score; not the product with v.
    core = (2 * 128**2 * 256 + 6 * 4 * 128**2) // ranks
    assert flops(selective, "backward") - flops(eager, "backward") == core
