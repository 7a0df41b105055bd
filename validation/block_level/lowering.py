"""The measurements of blocks, lowered to a chain or a graph."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from schedsim.dataflow.chain import Chain, Stage, gradients_beside
from schedsim.dataflow.graph import Graph, Op

from .bench import Measured
from .parts import Part, is_line
from .sizes import Sizes


def lowered(
    name: str, parts: Sequence[Part], sizes: Sizes, rows: Sequence[Measured], library: int
) -> Chain | Graph:
    """The workload: a chain where the parts form a line. `rows`: one row a part, the loss last."""
    times = _times(parts, sizes, rows)
    made = [row.made_bytes for row in rows]
    # A chain's stages hold them; a graph has them as tensors.
    line = is_line(parts)
    beside = gradients_beside(made) if line else (0,) * len(parts)
    own = made if line else [0] * len(rows)
    loss_s = _median(rows[-1].backward_s)
    loss_workspace = rows[-1].forward_workspace_bytes
    static = sizes.static_bytes + library
    names = _unique([part.name for part in parts])
    stages = [
        Stage(
            names[i],
            forward_s,
            backward_s,
            sizes.value_bytes[i + 1],
            row.saved_bytes,
            row.forward_workspace_bytes + beside[i],
            row.backward_workspace_bytes + beside[i] + own[i],
            row.saving_workspace_bytes + beside[i],
        )
        for i, (row, (forward_s, backward_s)) in enumerate(zip(rows, times, strict=False))
    ]
    if line:
        input_bytes, gradients = sizes.value_bytes[0], tuple(made) if any(made) else ()
        chain = Chain(name, input_bytes, tuple(stages), static, loss_s, loss_workspace)
        return replace(chain, gradient_bytes=gradients)
    return _graph(name, parts, sizes, stages, static, loss_s, loss_workspace, made)


def _graph(
    name: str,
    parts: Sequence[Part],
    sizes: Sizes,
    stages: Sequence[Stage],
    static_bytes: int,
    loss_s: float,
    loss_workspace_bytes: int,
    made_bytes: Sequence[int],
) -> Graph:
    """The blocks as a graph, lowered as a chain is; each reader of a value has its own gradient."""
    num = len(parts)
    size = sizes.value_bytes
    readers = {
        value: [i for i, part in enumerate(parts) if value in part.reads]
        for value in range(num + 1)
    }
    forward: list[Op] = []
    backward: list[Op] = []
    for i, (part, stage) in enumerate(zip(parts, stages, strict=True)):
        writes = {f"a{i + 1}": stage.output_bytes}
        bundle = f"r{i + 1}"
        optional: tuple[str, ...] = ()
        if stage.saved_bytes > stage.output_bytes:
            writes[bundle] = stage.saved_bytes - stage.output_bytes
            optional = (bundle,)
        read = tuple(f"a{value}" for value in part.reads)
        forward.append(
            Op(
                f"F{i}",
                "forward",
                stage.forward_s,
                stage.forward_workspace_bytes,
                read,
                writes,
                optional,
                saving_workspace_bytes=stage.saving_workspace_bytes,
            )
        )
        from_ = [f"d{i + 1}.{k}" for k in readers[i + 1]]
        if i == num - 1:
            from_.append(f"d{num}.loss")
        backward.append(
            Op(
                f"B{i}",
                "backward",
                stage.backward_s,
                stage.backward_workspace_bytes,
                (*from_, *read, f"a{i + 1}", *optional),
                {
                    **{f"d{value}.{i}": size[value] for value in part.reads if value},
                    **({f"g{i + 1}": made_bytes[i]} if made_bytes[i] else {}),
                },
                once=True,  # a second run would add its gradients again
            )
        )
    own = {"g": made_bytes[num]} if made_bytes[num] else {}
    loss_workspace_bytes -= made_bytes[num]
    loss = Op(
        "loss",
        "loss",
        loss_s,
        loss_workspace_bytes,
        (f"a{num}",),
        {f"d{num}.loss": size[num], **own},
    )
    ops = (*forward, loss, *reversed(backward))
    results = tuple(t for op in ops for t in op.writes if t[0] == "g")
    return Graph(name, ops, {"a0": size[0]}, static_bytes, results)


def _times(
    parts: Sequence[Part], sizes: Sizes, rows: Sequence[Measured]
) -> list[tuple[float, float]]:
    """(forward, backward) seconds of each part; parts of one kind share the median of all of them.

    The time of a forward is the time that replaying the part adds to a step. That is not the time
    of a forward by itself: the backward, which comes right after the replay, finds its data in the
    caches, or the allocator has to do more work. The rest is the backward's time, so that the times
    of store-all add up to the measured ones.
    """
    pools: dict[Any, list[Measured]] = {}
    keys = []
    for i, part in enumerate(parts):
        row = rows[i]
        shapes = [tuple(p.shape) for module in part.modules for p in module.parameters()]
        kinds = [type(module).__name__ for module in part.modules]
        read = [sizes.value_bytes[value] for value in part.reads]
        bytes_ = (row.saved_bytes, row.backward_workspace_bytes, sizes.value_bytes[i + 1])
        keys.append(repr((kinds, shapes, read, bytes_)))
        pools.setdefault(keys[-1], []).append(row)
    found = []
    for key in keys:
        pool = pools[key]
        rounds = [times for row in pool for times in row.rounds()]
        stored = _median([stored for _, _, stored in rounds])
        # Shares are taken within a round, because the machine may be slower in some rounds.
        alone = stored * _median([forward / whole for forward, _, whole in rounds if whole])
        longer = stored * _median([(f + r) / whole - 1.0 for f, r, whole in rounds if whole])
        shares = [b / (s + b) for row in pool for s, b in row.kept() if s + b]
        # The difference of noisy times is trusted only up to half of the forward's own time, and
        # leaves the backward half of what the backward was measured to take.
        longer = min(max(longer, 0.5 * alone), 1.5 * alone, stored * (1.0 - 0.5 * _median(shares)))
        found.append((longer, stored - longer))
    return found


def _median(times_s: Sequence[float]) -> float:
    return statistics.median(times_s) if times_s else 0.0


def _unique(names: Sequence[str]) -> list[str]:
    if len(set(names)) == len(names):
        return list(names)
    return [f"{i}.{name}" for i, name in enumerate(names)]
