"""Random training graphs with a true backward, chains of unit ops, and checks of graph planners."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from schedsim.algorithms.exhaustive import exhaustive

from schedsim import Graph, Op, PlannerLimitError, Schedule, simulate
from schedsim.plans.plan import Plan
from schedsim.plans.scope import ANY_SCHEDULE


def random_training_graph(rng: np.random.Generator, num_forward: int) -> Graph:
    """A forward DAG, a loss, and a backward op for each forward op, in reverse.

    A backward op reads the gradients of its op's outputs and some of what the op read and wrote;
    it writes a gradient for each tensor that the op read. There are several outputs, optional
    ones, outputs in place, ops that run once, ops and gradients without a time or a size, and
    results.
    """
    sizes = {f"in{i}": int(rng.integers(0, 9)) for i in range(int(rng.integers(1, 3)))}
    inputs = dict(sizes)
    forward: list[Op] = []
    gradients: dict[str, list[str]] = {name: [] for name in sizes}
    for i in range(num_forward):
        known = list(sizes)
        few = min(len(known), int(rng.integers(1, 4)))
        near = known[-4:] if rng.random() < 0.8 else known
        reads = tuple(rng.choice(near, min(few, len(near)), replace=False).tolist())
        writes = {f"t{i}": int(rng.integers(0, 20))}
        if rng.random() < 0.3:
            writes[f"t{i}.saved"] = int(rng.integers(0, 20))
        optional = tuple(name for name in writes if name.endswith("saved") and rng.random() < 0.7)
        in_place = {f"t{i}": reads[0]} if rng.random() < 0.2 else {}
        forward.append(
            Op(
                f"f{i}",
                time_s=float(rng.integers(0, 9)),
                workspace_bytes=int(rng.integers(0, 9)),
                reads=reads,
                writes=writes,
                optional=optional,
                once=bool(rng.random() < 0.1),
                in_place=in_place,
                saving_workspace_bytes=int(rng.integers(0, 9)) if rng.random() < 0.2 else None,
            )
        )
        sizes |= writes
        gradients |= {name: [] for name in writes}
    last = f"t{num_forward - 1}"
    gradients[last].append("d.loss")
    ops = [*forward, Op("loss", "loss", reads=(last,), writes={"d.loss": sizes[last]})]
    for i in range(num_forward - 1, -1, -1):
        op = forward[i]
        arriving = [name for tensor in op.writes for name in gradients[tensor]]
        values = [name for name in (*op.reads, *op.writes) if rng.random() < 0.6]
        writes = {}
        for tensor in op.reads:
            if tensor not in inputs:
                name = f"d{i}.{tensor}"
                writes[name] = sizes[tensor]
                gradients[tensor].append(name)
        ops.append(
            Op(
                f"b{i}",
                "backward",
                time_s=float(rng.integers(0, 9)),
                workspace_bytes=int(rng.integers(0, 9)),
                reads=(*arriving, *values),
                writes=writes,
                once=bool(rng.random() < 0.2),
            )
        )
    results = tuple(name for op in ops for name in op.writes if rng.random() < 0.05)
    return Graph("random training", tuple(ops), inputs, int(rng.integers(0, 20)), results)


def unit_training_chain(num_forward: int, *, with_output: bool = True) -> Graph:
    """Ops of a second and tensors of a byte; a backward op reads its op's input, and its output."""
    forward = [
        Op(f"f{i}", time_s=1, reads=(f"x{i}",) if i else (), writes={f"x{i + 1}": 1})
        for i in range(num_forward)
    ]
    loss = Op("loss", "loss", reads=(f"x{num_forward}",), writes={f"d{num_forward}": 1})
    backward = []
    for i in range(num_forward - 1, -1, -1):
        reads = [f"d{i + 1}"]
        reads += [f"x{i}"] if i else []
        reads += [f"x{i + 1}"] if with_output else []
        backward.append(Op(f"b{i}", "backward", 1, reads=tuple(reads), writes={f"d{i}": 1}))
    return Graph(f"unit{num_forward}", (*forward, loss, *backward))


def some_budget(rng: np.random.Generator, graph: Graph) -> int:
    """Between 40 % of the store-all peak and a little above it."""
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    return int(rng.integers(peak * 2 // 5, peak + 3))


def check_graph_plan(
    planner: Callable[[Graph, int], Plan], graph: Graph, budget_bytes: int
) -> Plan:
    """The plan, after checking all that a planner of graphs promises by itself."""
    plan = planner(graph, budget_bytes)
    assert plan.budget_bytes == budget_bytes
    assert plan.lower_bound_s >= graph.store_all_s
    if plan.schedule is None:
        assert plan.status == "infeasible"
        if plan.min_feasible_bytes is not None:
            assert plan.min_feasible_bytes > budget_bytes
            assert planner(graph, plan.min_feasible_bytes).feasible
        return plan
    replay = simulate(graph, plan.schedule)
    assert replay.peak_bytes == plan.peak_bytes <= budget_bytes
    assert replay.makespan_s == plan.makespan_s
    assert plan.lower_bound_s <= plan.makespan_s
    firsts = list(dict.fromkeys(plan.schedule.bind(graph).tolist()))
    assert firsts == sorted(firsts), "first runs leave the graph's order"
    again = planner(graph, budget_bytes)
    assert again.schedule == plan.schedule, "the same call gives another schedule"
    return plan


def check_against_oracle(
    planner: Callable[[Graph, int], Plan], graph: Graph, budget_bytes: int
) -> None:
    """`check_graph_plan`, and the optimum over all schedules of a tiny graph."""
    plan = check_graph_plan(planner, graph, budget_bytes)
    try:
        best = exhaustive(graph, budget_bytes, max_states=20_000)
    except PlannerLimitError:
        return
    if plan.schedule is not None:
        assert best.makespan_s is not None
        assert best.makespan_s <= plan.makespan_s
        if plan.bound_scope == ANY_SCHEDULE:
            assert plan.lower_bound_s <= best.makespan_s * (1 + 1e-9)
        if plan.status == "optimal":
            assert plan.makespan_s <= best.makespan_s * (1 + 1e-9)
    if not best.feasible and best.min_feasible_bytes and plan.min_feasible_bytes:
        assert best.min_feasible_bytes <= plan.min_feasible_bytes


def deep_unet(levels: int, width: int) -> Graph:
    """A training step of a U-Net: `width` ops a level down and up, a skip from each to its mirror.

    Sizes halve with every level; a backward op reads the gradients of its op's output, its output
    and what the op read.
    """
    size = 1 << (levels + 6)
    forward: list[tuple[str, tuple[str, ...], int, float]] = []
    source, skips = "in", []

    def add(name: str, reads: tuple[str, ...], size_bytes: int, time_s: float) -> str:
        forward.append((name, reads, size_bytes, time_s))
        return name

    for level in range(levels):
        for k in range(width):
            source = add(f"d{level}.{k}", (source,), size >> level, 1.0 + (7 * k + level) % 5)
        skips.append(source)
    for k in range(width):
        source = add(f"m.{k}", (source,), size >> levels, 1.0)
    for level in reversed(range(levels)):
        source = add(f"u{level}.0", (source, skips[level]), size >> level, 2.0)
        for k in range(1, width):
            source = add(f"u{level}.{k}", (source,), size >> level, 1.0 + (3 * k + level) % 4)
    sizes = {name: size_bytes for name, _, size_bytes, _ in forward}
    ops = [Op(name, "forward", t, 0, reads, {name: s}) for name, reads, s, t in forward]
    ops.append(Op("loss", "loss", reads=(source,), writes={f"g.{source}.0": sizes[source]}))
    gradients = {source: [f"g.{source}.0"]}
    for name, reads, _, time_s in reversed(forward):
        written = {}
        for tensor in reads:
            if tensor != "in":
                known = gradients.setdefault(tensor, [])
                known.append(f"g.{tensor}.{len(known)}")
                written[known[-1]] = sizes[tensor]
        needed = tuple(dict.fromkeys([*gradients[name], *reads, name]))
        ops.append(Op(f"b.{name}", "backward", 2 * time_s, 0, needed, written))
    return Graph("unet", tuple(ops), {"in": size})
