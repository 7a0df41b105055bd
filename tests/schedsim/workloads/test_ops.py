"""Models as op records, from which both forms of a workload are derived: graph and chain."""

from __future__ import annotations

from schedsim.workloads import Roofline, TransformerConfig, get_device, transformer_model
from schedsim.workloads.ops import to_graph

ROOFLINE = Roofline(get_device("a100-80gb"))


def layer(hidden: int, heads: int, batch: int = 1, **more) -> TransformerConfig:
    sizes = {"num_layers": 1, "hidden": hidden, "num_heads": heads, "seq": 2048, "batch": batch}
    return TransformerConfig(name="layer", **(sizes | more))


def test_sequence_parallel_gathers():
    """Kept are shards, but a product needs the whole s b h: it is charged while the op runs."""
    whole = 2 * 2048 * 12288
    config = layer(12288, 96, tensor_parallel=8, sequence_parallel=True)
    ops = {op.name: op.workspace_bytes for op in to_graph(transformer_model(config), ROOFLINE)}
    gathers = {name.split(".", 1)[1]: size // whole for name, size in ops.items() if size}
    once = ("attention.qkv", "attention.proj", "mlp.up", "mlp.down", "attention.proj'", "mlp.down'")
    assert gathers == dict.fromkeys(once, 1) | {"attention.qkv'": 2, "mlp.up'": 2}
    without = transformer_model(layer(12288, 96, tensor_parallel=8))
    assert not any(op.workspace_bytes for op in to_graph(without, ROOFLINE))
