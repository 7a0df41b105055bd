"""Random chains, graphs and schedules for the tests, and where shared instances lie."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from schedsim import Chain, Graph, Op, Schedule, Stage

INSTANCES = Path(
    os.environ.get("SCHEDSIM_INSTANCES", Path(__file__).parents[3] / "shared" / "instances")
)
needs_instances = pytest.mark.skipif(
    not (INSTANCES / "chain" / "truth.json").exists(),
    reason="the shared instances with known answers are not here (set SCHEDSIM_INSTANCES)",
)


def random_chain(rng: np.random.Generator, num_stages: int, *, integer_times: bool = True) -> Chain:
    """Uneven sizes and times with workspaces and static bytes; some sizes are zero."""
    output = rng.integers(0, 20, num_stages)
    times = rng.integers(1, 10, (2, num_stages)) if integer_times else rng.random((2, num_stages))
    chain = Chain.from_arrays(
        "random",
        int(rng.integers(0, 20)),
        forward_s=times[0],
        backward_s=times[1],
        output_bytes=output,
        saved_bytes=output + rng.integers(0, 3, num_stages) * rng.integers(0, 15, num_stages),
        forward_workspace_bytes=rng.integers(0, 10, num_stages),
        backward_workspace_bytes=rng.integers(0, 10, num_stages),
        static_bytes=int(rng.integers(0, 50)),
    )
    if rng.random() < 0.5:
        return chain
    stages = [replace(s, saving_workspace_bytes=int(rng.integers(0, 10))) for s in chain.stages]
    return replace(chain, stages=tuple(stages))


def unit_chain(num_stages: int) -> Chain:
    """All sizes and times 1, the bundle nothing but the output."""
    ones = [1] * num_stages
    return Chain.from_arrays(
        f"unit{num_stages}",
        1,
        forward_s=ones,
        backward_s=ones,
        output_bytes=ones,
        saved_bytes=ones,
    )


def chain_with_made_gradients(seed: int) -> Chain:
    """Four stages; for odd seeds with gradients of parameters, which may be made twice."""
    rng = np.random.default_rng(seed)
    made = tuple(rng.integers(0, 6, 4).tolist()) if seed % 2 else ()
    stages = tuple(
        Stage(f"s{i}", f, b, out, out + more, 30, 40, 30 if made else 20 + seed)
        for i, (f, b, out, more) in enumerate(rng.integers(1, 9, (3, 4)).tolist())
    )
    return Chain("g", 3, stages, loss_workspace_bytes=20, gradient_bytes=made)


def random_graph(rng: np.random.Generator, num_ops: int) -> Graph:
    """Ops with several outputs, optional ones, in-place ones, ops that run once, and results."""
    tensors = [f"in{i}" for i in range(int(rng.integers(0, 3)))]
    inputs = {name: int(rng.integers(0, 20)) for name in tensors}
    ops = []
    for i in range(num_ops):
        few = min(len(tensors), int(rng.integers(0, 4)))
        reads = tuple(rng.choice(tensors, few, replace=False).tolist()) if few else ()
        writes = {f"t{i}.{k}": int(rng.integers(0, 20)) for k in range(int(rng.integers(0, 3)))}
        optional = tuple(name for name in writes if rng.random() < 0.3)
        solid = [name for name in writes if name not in optional]
        in_place = {solid[0]: reads[0]} if solid and reads and rng.random() < 0.3 else {}
        ops.append(
            Op(
                name=f"op{i}",
                phase=("forward", "forward", "loss", "backward")[4 * i // num_ops],
                time_s=float(rng.integers(0, 9)),
                workspace_bytes=int(rng.integers(0, 9)),
                reads=reads,
                writes=writes,
                optional=optional,
                once=bool(rng.random() < 0.1),
                in_place=in_place,
                saving_workspace_bytes=int(rng.integers(0, 9)) if rng.random() < 0.3 else None,
            )
        )
        tensors += list(writes)
    made = [name for op in ops for name in op.writes]
    results = tuple(name for name in made if rng.random() < 0.1)
    return Graph("random", tuple(ops), inputs, int(rng.integers(0, 30)), results)


def random_schedule(rng: np.random.Generator, graph: Graph) -> Schedule:
    """A legal schedule: the ops in order, with repeats of what has run thrown in."""
    runs: list[int] = []
    for i in range(graph.num_ops):
        for _ in range(int(rng.integers(0, 3))):
            again = int(rng.integers(0, i)) if i else 0
            if i and not graph.ops[again].once:
                runs.append(again)
        runs.append(i)
    return Schedule(graph.op_names, runs)
