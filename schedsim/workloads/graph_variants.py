"""Variants of op graphs: encoded tensors for backward ops, and the variants of the records."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ..dataflow.graph import Graph, Op
from ..dataflow.variants import GraphVariant
from .devices import DTYPE_BYTES, Roofline
from .ops import ModelRecord
from .record_variants import (
    DECODE_FLOPS,
    ENCODE_FLOPS,
    encoded_bytes,
    encodings,
    exact_or_approximate,
)

# Encoding a tensor smaller than this is not worth two ops.
LEAST_BYTES = 4096


def with_graph_variants(
    graph: Graph, model: ModelRecord, allow: Collection[str], dtype: str, roofline: Roofline
) -> Graph:
    """`graph`, lowered from `model`, with the variants of the kinds in `allow`; O(reads)."""
    found: list[GraphVariant] = []
    source = "input"
    for stage in model.stages:
        for variant in exact_or_approximate(stage, allow, dtype):
            prefix, entering = stage.name, source

            def new(tensor: str, prefix: str = prefix, entering: str = entering) -> str:
                return entering if tensor == "in" else f"{prefix}.{tensor}"

            found.append(
                GraphVariant(
                    f"{prefix}: {variant.name}",
                    variant.kind,
                    instead={
                        f"{prefix}.{op}": {new(a): new(b) for a, b in table.items()}
                        for op, table in variant.instead.items()
                    },
                    writes={
                        f"{prefix}.{op}": {new(t): size for t, size in sizes.items()}
                        for op, sizes in variant.writes.items()
                    },
                )
            )
        source = f"{stage.name}.out"
    for name, kind, bits in encodings(allow, dtype):
        found += _encoded(graph, name, kind, bits, dtype, roofline)
    return replace(graph, variants=tuple(found))


def _encoded(
    graph: Graph, name: str, kind: str, bits: int, dtype: str, roofline: Roofline
) -> list[GraphVariant]:
    element = DTYPE_BYTES[dtype]
    readers: dict[str, list[str]] = {}
    for op in graph.ops:
        if op.phase == "backward":
            for tensor in op.reads:
                readers.setdefault(tensor, []).append(op.name)
    found = []
    for op in graph.ops:
        if op.phase != "forward":
            continue
        for tensor, size in op.writes.items():
            if tensor not in readers or tensor in op.optional or size < LEAST_BYTES:
                continue
            small, again = f"{tensor}.{name}", f"{tensor}.{name}.again"
            small_bytes = encoded_bytes(size, element, kind, bits)
            moved, count = size + small_bytes, size // element
            encode_s = roofline.time_s(ENCODE_FLOPS * count, moved, dtype)
            decode_s = roofline.time_s(DECODE_FLOPS * count, moved, dtype)
            encode = Op(f"{name} {tensor}", "forward", encode_s, 0, (tensor,), {small: small_bytes})
            decode = Op(f"{name}' {tensor}", "backward", decode_s, 0, (small,), {again: size})
            instead = {reader: {tensor: again} for reader in readers[tensor]}
            found.append(GraphVariant(f"{name} {tensor}", kind, (encode, decode), instead))
    return found
