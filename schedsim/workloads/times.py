"""Measured times from a file, in the place of the roofline's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..dataflow.chain import Chain
from ..dataflow.graph import Graph
from ..errors import InvalidWorkloadError
from ..files.reader import Reader, parse_json

TIMES_SCHEMA = "schedsim.times/1"


def with_measured_times(workload: Chain | Graph, path: str | Path) -> Chain | Graph:
    """`workload` with the times in the JSON file at `path`.

    The file holds ``{"schema": "schedsim.times/1", "stages": {name: {"forward_s", "backward_s"}}}``
    for a chain, ``{"schema": ..., "ops": {name: seconds}}`` for a graph. Every stage or op must be
    there, under its own name, and nothing else.
    """
    try:
        reader = Reader(parse_json(Path(path).read_bytes()), "")
        reader.take_choice("schema", (TIMES_SCHEMA,))
        if isinstance(workload, Chain):
            table = reader.take_object("stages")
            stages = []
            for stage in workload.stages:
                item = table.take_object(stage.name)
                times = item.take_seconds("forward_s"), item.take_seconds("backward_s")
                item.finish()
                stages.append(replace(stage, forward_s=times[0], backward_s=times[1]))
            changed: Chain | Graph = replace(workload, stages=tuple(stages))
        else:
            table = reader.take_object("ops")
            ops = [replace(op, time_s=table.take_seconds(op.name)) for op in workload.ops]
            changed = replace(workload, ops=tuple(ops))
        table.finish()
        reader.finish()
    except InvalidWorkloadError as error:
        raise InvalidWorkloadError(f"{path}: {error.message}", hint=error.hint) from None
    return changed
