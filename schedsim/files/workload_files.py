"""Reading and writing ``schedsim.chain/1`` and ``schedsim.graph/1``, and the hash of a workload."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ..dataflow.chain import Chain, Stage
from ..dataflow.graph import Graph
from .reader import Reader
from .recorded_files import read_recorded, recorded_to_dict
from .workload_parts import (
    op_to_dict,
    read_graph_variants,
    read_op,
    read_stage_variants,
    variant_to_dict,
)

CHAIN_SCHEMA = "schedsim.chain/1"
GRAPH_SCHEMA = "schedsim.graph/1"

MOST_STAGES, MOST_OPS = 200_000, 600_000
"""Limits on a file: a stage takes 4 kB and 40 us before planning, an op a third of that."""


def workload_to_dict(workload: Chain | Graph) -> dict[str, Any]:
    """The content of the file for `workload`."""
    return chain_to_dict(workload) if isinstance(workload, Chain) else graph_to_dict(workload)


def workload_hash(workload: Chain | Graph) -> str:
    """SHA-256 over everything in the workload that a plan depends on (not its name)."""
    cached = workload.__dict__.get("_content_hash")
    if cached is None:
        document = workload_to_dict(workload)
        del document["name"]
        document.pop("recorded", None)  # how an allocator serves it, not what is run
        # Variants that may be chosen do not change what runs: a plan carries those that it uses.
        document.pop("variants", None)
        for stage in document.get("stages", ()):
            stage.pop("variants", None)
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
        cached = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
        workload.__dict__["_content_hash"] = cached
    return str(cached)


def offered_hash(workload: Chain | Graph) -> str:
    """SHA-256 over the content of `workload_hash` and the variants that a planner may choose.

    Two workloads that differ only in their variants share `workload_hash`, and have the same plans
    unless variants are allowed; their `offered_hash` differs.
    """
    document = workload_to_dict(workload)
    del document["name"]
    document.pop("recorded", None)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def chain_to_dict(chain: Chain) -> dict[str, Any]:
    """The content of a ``schedsim.chain/1`` file."""
    document: dict[str, Any] = {
        "schema": CHAIN_SCHEMA,
        "name": chain.name,
        "input_bytes": chain.input_bytes,
        "static_bytes": chain.static_bytes,
    }
    if chain.loss_s:
        document["loss_s"] = float(chain.loss_s)
    if chain.loss_workspace_bytes:
        document["loss_workspace_bytes"] = chain.loss_workspace_bytes
    document["stages"] = [_stage_to_dict(stage) for stage in chain.stages]
    if chain.gradient_bytes:
        document["gradient_bytes"] = list(chain.gradient_bytes)
    if chain.recorded is not None:
        document["recorded"] = recorded_to_dict(chain.recorded)
    return document


def _stage_to_dict(stage: Stage) -> dict[str, Any]:
    item: dict[str, Any] = {
        "name": stage.name,
        "forward_s": float(stage.forward_s),
        "backward_s": float(stage.backward_s),
        "output_bytes": stage.output_bytes,
        "saved_bytes": stage.saved_bytes,
        "forward_workspace_bytes": stage.forward_workspace_bytes,
        "backward_workspace_bytes": stage.backward_workspace_bytes,
    }
    if stage.saving_workspace_bytes is not None:
        item["saving_workspace_bytes"] = stage.saving_workspace_bytes
    if stage.rule:
        item["rule"] = stage.rule
    if stage.variants:
        item["variants"] = [variant_to_dict(variant) for variant in stage.variants]
    return item


def read_chain(reader: Reader) -> Chain:
    """The chain of a ``schedsim.chain/1`` file."""
    reader.skip("description")
    arguments: dict[str, Any] = {
        "name": reader.take("name", str),
        "input_bytes": reader.take_bytes("input_bytes"),
        "static_bytes": reader.take_bytes("static_bytes", 0),
        "loss_s": reader.take_seconds("loss_s", 0.0),
        "loss_workspace_bytes": reader.take("loss_workspace_bytes", int, 0),
    }
    stages = []
    for item in reader.take_objects("stages", most=MOST_STAGES):
        stages.append(
            Stage(
                name=item.take("name", str),
                forward_s=item.take_seconds("forward_s"),
                backward_s=item.take_seconds("backward_s"),
                output_bytes=item.take_bytes("output_bytes"),
                saved_bytes=item.take_bytes("saved_bytes"),
                forward_workspace_bytes=item.take_bytes("forward_workspace_bytes", 0),
                backward_workspace_bytes=item.take("backward_workspace_bytes", int, 0),
                saving_workspace_bytes=item.take_optional_bytes("saving_workspace_bytes", None),
                variants=read_stage_variants(item),
                rule=item.take("rule", str, ""),
            )
        )
        item.finish()
    gradients = reader.take_bytes_list("gradient_bytes", [])
    arguments["recorded"] = reader.take_part("recorded", read_recorded)
    reader.finish()
    return Chain(stages=tuple(stages), gradient_bytes=tuple(gradients), **arguments)


def graph_to_dict(graph: Graph) -> dict[str, Any]:
    """The content of a ``schedsim.graph/1`` file."""
    ops = [op_to_dict(op) for op in graph.ops]
    document: dict[str, Any] = {
        "schema": GRAPH_SCHEMA,
        "name": graph.name,
        "static_bytes": graph.static_bytes,
        "inputs": dict(graph.inputs),
        "ops": ops,
        "results": list(graph.results),
    }
    if graph.variants:
        document["variants"] = [variant_to_dict(variant) for variant in graph.variants]
    if graph.pool_static_bytes:
        document["pool_static_bytes"] = dict(graph.pool_static_bytes)
    if graph.input_pools:
        document["input_pools"] = dict(graph.input_pools)
    if graph.recorded is not None:
        document["recorded"] = recorded_to_dict(graph.recorded)
    return document


def read_graph(reader: Reader) -> Graph:
    """The graph of a ``schedsim.graph/1`` file."""
    reader.skip("description")
    arguments: dict[str, Any] = {
        "name": reader.take("name", str),
        "static_bytes": reader.take_bytes("static_bytes", 0),
        "inputs": reader.take_sizes("inputs", {}),
        "results": reader.take_names("results", ()),
        "pool_static_bytes": reader.take_sizes("pool_static_bytes", {}),
        "input_pools": reader.take_texts("input_pools", {}),
    }
    ops = tuple(read_op(item) for item in reader.take_objects("ops", most=MOST_OPS))
    arguments["variants"] = read_graph_variants(reader)
    arguments["recorded"] = reader.take_part("recorded", read_recorded)
    reader.finish()
    return Graph(ops=ops, **arguments)
