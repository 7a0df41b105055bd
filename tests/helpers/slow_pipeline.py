"""Memory of a schedule on several streams the slow way: every instance, its start and its end."""

from __future__ import annotations

from schedsim import Graph


def pool_peaks(graph: Graph, names, start_s, end_s) -> dict[str, int]:
    """Largest bytes in each pool, given when each run of `names` starts and ends.

    An instance is there from the start of the run that writes it to the latest end of its reads
    before it is written again; frees at a time come before what begins then. For runs that take
    time; a run that takes none is looked at nowhere.
    """
    ops = {op.name: op for op in graph.ops}
    size = {t: n for op in graph.ops for t, n in op.writes.items()}
    optional = {t for op in graph.ops for t in op.optional}
    latest = {}
    instances = []  # [tensor, pool, born, dies, runs that read it, shared bytes]
    working = []  # (pool, born, dies, bytes)
    made = []
    for k, name in enumerate(names):
        op = ops[name]
        read = [latest[t] for t in op.reads]
        for instance in read:
            instance[3] = max(instance[3], end_s[k])
            instance[4].append(k)
        made.append({})
        for t in op.writes:
            latest[t] = made[k][t] = [t, op.pool_of(t), start_s[k], end_s[k], [], 0]
            instances.append(latest[t])
            if t in op.in_place:
                made[k][t].append(read[op.reads.index(op.in_place[t])])
    for k, name in enumerate(names):
        op = ops[name]
        saves = any(made[k][t][4] for t in op.optional)
        more = op.saving_workspace_bytes
        temporary = op.workspace_bytes if more is None or not saves else more
        working.append((op.stream.replace("compute", "device"), start_s[k], end_s[k], temporary))
        for t, source in op.in_place.items():
            taken = made[k][t][6]
            if taken[4][-1] == k and all(end_s[j] <= start_s[k] for j in taken[4][:-1]):
                # One storage for both while the run lasts.
                shared = min(size[t], size[source])
                working.append((op.pool_of(t), start_s[k], end_s[k], -shared))
    instances = [one for one in instances if one[4] or one[0] not in optional]
    peaks: dict[str, int] = {}
    for now in sorted(set(start_s)):
        use = dict(graph.pool_static_bytes)
        for t, pool, born, dies, *_ in instances:
            if born <= now < dies:
                use[pool] = use.get(pool, 0) + size[t]
        for pool, born, dies, more in working:
            if born <= now < dies:
                use[pool] = use.get(pool, 0) + more
        for pool, total in use.items():
            peaks[pool] = max(peaks.get(pool, 0), total)
    return peaks
