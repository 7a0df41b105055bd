"""Random graphs and schedules on several streams and pools, with copies and messages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from chains import random_graph, random_schedule

from schedsim import Graph, Op, Schedule


def random_stream_graph(rng: np.random.Generator, num_ops: int) -> Graph:
    """`random_graph` spread over one to three devices and two links, with copies to the host.

    Times are small integers, so that many things happen at once, or take no time at all.
    """
    base = random_graph(rng, num_ops)
    num_devices = int(rng.integers(1, 4))
    single = rng.random() < 0.5
    host_inputs = [name for name in base.inputs if rng.random() < 0.2]
    pools = {name: "host" if name in host_inputs else "device" for name in base.inputs}
    sizes = dict(base.inputs)
    ops: list[Op] = []
    for op in base.ops:
        device = int(rng.integers(0, num_devices))
        stream = "compute" if single else f"compute:{device}"
        moves = rng.random() < 0.2
        if moves:
            stream = f"link:{device}-{int(rng.integers(0, num_devices))}"
        reads = tuple(name for name in op.reads if moves or pools[name] != "host")
        home = "device" if single or moves else f"device:{device}"
        places = dict.fromkeys(op.writes, home)
        placed = {}
        for name in op.writes:
            if moves and not single and rng.random() < 0.7:
                places[name] = placed[name] = f"device:{int(rng.integers(0, num_devices))}"
        in_place = {
            output: source
            for output, source in op.in_place.items()
            if source in reads and pools[source] == places[output]
        }
        ops.append(replace(op, stream=stream, reads=reads, in_place=in_place, pools=placed))
        pools |= places
        sizes |= op.writes
    for name in list(sizes):
        if rng.random() > 0.5:
            continue
        there = f"{name}@host"
        down = Op(
            f"d2h:{name}",
            time_s=float(rng.integers(0, 9)),
            workspace_bytes=int(rng.integers(0, 3)),
            reads=(name,),
            writes={there: sizes[name]},
            stream="d2h",
            pools={there: "host"},
            required=False,
            once=bool(rng.random() < 0.1),
        )
        up = Op(
            f"h2d:{name}",
            phase="backward",
            time_s=float(rng.integers(0, 9)),
            reads=(there,),
            writes={name: sizes[name]},
            stream="h2d",
            pools={name: pools[name]},
            required=False,
        )
        ops += [down, up]
    static = {"host": int(rng.integers(0, 9))} if rng.random() < 0.3 else {}
    return Graph(
        "random streams",
        tuple(ops),
        base.inputs,
        base.static_bytes,
        base.results,
        static,
        dict.fromkeys(host_inputs, "host"),
    )


def random_stream_schedule(rng: np.random.Generator, graph: Graph) -> Schedule:
    """Legal: required ops in order, with repeats, and copies of what there is, thrown in."""
    there = set(graph.inputs)
    count = [0] * graph.num_ops
    runs: list[int] = []

    def run(i: int) -> None:
        runs.append(i)
        count[i] += 1
        there.update(graph.ops[i].writes)

    for i, op in enumerate(graph.ops):
        if not op.required:
            continue
        for _ in range(int(rng.integers(0, 4))):
            others = [
                k
                for k, other in enumerate(graph.ops)
                if (count[k] or not other.required)
                and not (other.once and count[k])
                and there.issuperset(other.reads)
            ]
            if others:
                run(int(rng.choice(others)))
        run(i)
    return Schedule(graph.op_names, runs)


def single_stream_instance(rng: np.random.Generator, num_ops: int) -> tuple[Graph, Schedule]:
    """A graph on one stream and a schedule of it."""
    graph = random_graph(rng, num_ops)
    return graph, random_schedule(rng, graph)
