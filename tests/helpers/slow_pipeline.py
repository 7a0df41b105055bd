"""Memory of a pipeline's schedule the slow way: every instance with its start and its end."""

from __future__ import annotations

from schedsim import Graph


def pool_peaks(graph: Graph, names, start_s, end_s) -> dict[str, int]:
    """Largest bytes in each pool, given when each run of `names` starts and ends.

    An instance is there from the start of the run that writes it to the latest end of its reads
    before it is written again; frees at a time come before what begins then.
    """
    ops = {op.name: op for op in graph.ops}
    size = {t: n for op in graph.ops for t, n in op.writes.items()}
    pool = {t: op.pools.get(t, "device") for op in graph.ops for t in op.writes}
    optional = {t for op in graph.ops for t in op.optional}
    alive = {}  # tensor -> [born, dies, read at all]
    done, runs = [], []
    for name, born, dies in zip(names, start_s, end_s, strict=True):
        op = ops[name]
        for t in op.reads:
            alive[t][1] = max(alive[t][1], dies)
            alive[t][2] = True
        taken = {}
        for out, source in op.in_place.items():
            taken[out] = source
        for t in op.writes:
            if t in alive:
                done.append((t, *alive[t]))
            alive[t] = [born, dies, False]
        runs.append((op, born, dies, taken))
    done += [(t, *life) for t, life in alive.items()]
    done = [item for item in done if item[3] or item[0] not in optional]
    events = sorted({born for _, born, _, _ in done} | {born for _, born, _, _ in runs})
    peaks: dict[str, int] = {}
    last = {}
    for t, born, dies, _ in done:
        last[t, born] = dies
    for now in events:
        use: dict[str, int] = dict(graph.pool_static_bytes)
        for t, born, dies, _ in done:
            if born <= now < dies:
                use[pool[t]] = use.get(pool[t], 0) + size[t]
        for op, born, dies, taken in runs:
            if born <= now < dies:
                where = op.queue.replace("compute", "device")
                use[where] = use.get(where, 0) + op.workspace_bytes
                for out, source in taken.items():
                    use[pool[out]] -= min(size[out], size[source])
        for name, bytes_ in use.items():
            peaks[name] = max(peaks.get(name, 0), bytes_)
    return peaks
