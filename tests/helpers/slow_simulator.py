"""The memory rule word by word, slowly: what the fast simulator is held against."""

from __future__ import annotations

from dataclasses import dataclass

from schedsim import Graph


@dataclass
class Instance:
    tensor: str
    first: int
    readers: list[int]
    source: Instance | None = None


def slow_memory(graph: Graph, names: list[str]) -> list[int]:
    """Bytes during each run, from lists of instances and their readers."""
    ops = {op.name: op for op in graph.ops}
    optional = {tensor for op in graph.ops for tensor in op.optional}
    sizes = {**graph.inputs, **{t: s for op in graph.ops for t, s in op.writes.items()}}
    latest = {tensor: Instance(tensor, 0, []) for tensor in graph.inputs}
    instances = list(latest.values())
    for run, name in enumerate(names):
        for tensor in ops[name].reads:
            latest[tensor].readers.append(run)
        made = {}
        for tensor in ops[name].writes:
            source = ops[name].in_place.get(tensor)
            made[tensor] = Instance(tensor, run, [], latest[source] if source else None)
        latest.update(made)
        instances += made.values()

    def lives(instance: Instance) -> range:
        """Runs from its writing to its last read; a result's last instance to the end."""
        if instance.tensor in graph.results and latest[instance.tensor] is instance:
            return range(instance.first, len(names))
        if instance.readers:
            return range(instance.first, max(instance.readers) + 1)
        if instance.tensor in optional or instance.tensor in graph.inputs:
            return range(0)  # never materialised, or never needed
        return range(instance.first, instance.first + 1)

    memory = []
    for run, name in enumerate(names):
        op = ops[name]
        saves = any(i.first == run and i.tensor in op.optional and lives(i) for i in instances)
        differs = saves and op.saving_workspace_bytes is not None
        total = graph.static_bytes
        total += op.saving_workspace_bytes if differs else op.workspace_bytes
        for instance in instances:
            if run not in lives(instance):
                continue
            total += sizes[instance.tensor]
            source = instance.source
            dies_here = source is not None and lives(source) and lives(source)[-1] == run
            if dies_here and source.tensor in graph.results and latest[source.tensor] is source:
                dies_here = False  # a result outlives the last run
            if instance.first == run and dies_here:
                total -= min(sizes[instance.tensor], sizes[source.tensor])
        memory.append(total)
    return memory
