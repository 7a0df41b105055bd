"""Ops and variants as they stand in workload and plan files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..dataflow.op import Op
from ..dataflow.streams import COMPUTE
from ..dataflow.variants import ChosenVariant, GraphVariant, StageVariant, Variant
from .reader import Reader


def op_to_dict(op: Op) -> dict[str, Any]:
    """An op of a ``schedsim.graph/1`` file."""
    item: dict[str, Any] = {
        "name": op.name,
        "phase": op.phase,
        "time_s": float(op.time_s),
        "workspace_bytes": op.workspace_bytes,
        "reads": list(op.reads),
        "writes": dict(op.writes),
        "optional": list(op.optional),
        "once": op.once,
    }
    # Fields with default values are left out, so that files of plain graphs stay short.
    if op.saving_workspace_bytes is not None:
        item["saving_workspace_bytes"] = op.saving_workspace_bytes
    if op.in_place:
        item["in_place"] = dict(op.in_place)
    if op.stream != COMPUTE:
        item["queue"] = op.stream
    if op.pools:
        item["pools"] = dict(op.pools)
    if not op.required:
        item["required"] = False
    if op.evicted:
        item["evicted"] = list(op.evicted)
    return item


def read_op(item: Reader) -> Op:
    """The op that `item` describes."""
    return item.whole(
        Op(
            name=item.take("name", str),
            phase=item.take("phase", str),
            time_s=item.take_seconds("time_s"),
            workspace_bytes=item.take("workspace_bytes", int, 0),
            saving_workspace_bytes=item.take_optional_bytes("saving_workspace_bytes", None),
            reads=item.take_names("reads"),
            writes=item.take_sizes("writes"),
            optional=item.take_names("optional", ()),
            once=item.take("once", bool, False),
            in_place=item.take_texts("in_place", {}),
            stream=item.take("queue", str, COMPUTE),
            pools=item.take_texts("pools", {}),
            required=item.take("required", bool, True),
            evicted=item.take_names("evicted", ()),
        )
    )


def variant_to_dict(variant: Variant) -> dict[str, Any]:
    """A variant of a stage or of a graph."""
    item: dict[str, Any] = {"name": variant.name, "kind": variant.kind}
    if isinstance(variant, GraphVariant):
        return item | {
            "adds": [op_to_dict(op) for op in variant.adds],
            "instead": {op: dict(table) for op, table in variant.instead.items()},
            "writes": {op: dict(sizes) for op, sizes in variant.writes.items()},
        }
    item |= {"saved_bytes": variant.saved_bytes, "extra_s": float(variant.extra_s)}
    for name in ("backward_workspace_bytes", "saving_workspace_bytes"):
        if (size := getattr(variant, name)) is not None:
            item[name] = size
    return item


def read_stage_variants(reader: Reader) -> tuple[StageVariant, ...]:
    """The field ``variants`` of a stage."""
    return tuple(_read_stage_variant(item) for item in reader.take_objects("variants", ()))


def _read_stage_variant(item: Reader) -> StageVariant:
    return item.whole(
        StageVariant(
            name=item.take("name", str),
            kind=item.take("kind", str),
            saved_bytes=item.take_bytes("saved_bytes"),
            extra_s=item.take_seconds("extra_s", 0.0),
            backward_workspace_bytes=item.take_optional_bytes("backward_workspace_bytes", None),
            saving_workspace_bytes=item.take_optional_bytes("saving_workspace_bytes", None),
        )
    )


def read_graph_variants(reader: Reader) -> tuple[GraphVariant, ...]:
    """The field ``variants`` of a graph."""
    return tuple(_read_graph_variant(item) for item in reader.take_objects("variants", ()))


def _read_graph_variant(item: Reader) -> GraphVariant:
    instead, writes = item.take_object("instead"), item.take_object("writes")
    return item.whole(
        GraphVariant(
            name=item.take("name", str),
            kind=item.take("kind", str),
            adds=tuple(read_op(op) for op in item.take_objects("adds", ())),
            instead={name: instead.take_texts(name) for name in instead.names()},
            writes={name: writes.take_sizes(name) for name in writes.names()},
        )
    )


def chosen_to_list(chosen: Sequence[ChosenVariant]) -> list[dict[str, Any]]:
    """The field ``variants`` of a plan."""
    return [
        variant_to_dict(choice.variant) | ({"stage": choice.stage} if choice.stage else {})
        for choice in chosen
    ]


def read_chosen(reader: Reader) -> tuple[ChosenVariant, ...]:
    """The field ``variants`` of a plan."""
    found = []
    for item in reader.take_objects("variants", ()):
        stage = item.take("stage", str, "")
        variant = _read_stage_variant(item) if stage else _read_graph_variant(item)
        found.append(ChosenVariant(variant, stage))
    return tuple(found)
