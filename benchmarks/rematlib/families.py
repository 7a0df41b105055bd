"""Synthetic instances: each family is a function of sizes and a seed, and of nothing else.

Times and sizes are small whole numbers (of a unit, and of bytes), so that every sum is exact. Only
`random.Random.random` is drawn from, whose sequence for a seed Python keeps the same for ever.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from schedsim import Chain, Graph, Op


class Draw:
    """Whole numbers from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def between(self, least: int, most: int) -> int:
        """A whole number from `least` to `most`, both included."""
        return least + int(self._random.random() * (most - least + 1))

    def heavy(self, least: int, most: int) -> int:
        """A number mostly near `least`: a Pareto distribution of index 1.1, cut at `most`."""
        return min(most, int(least / (1.0 - self._random.random()) ** (1 / 1.1)))

    def one_of(self, items: Sequence[str], count: int) -> list[str]:
        """`count` different ones of `items`, or all."""
        left = list(items)
        return [left.pop(self.between(0, len(left) - 1)) for _ in range(min(count, len(left)))]

    def happens(self, share: float) -> bool:
        """True in this share of calls."""
        return self._random.random() < share


# --- chains ----------------------------------------------------------------------------------


def uniform_chain(stages: int, ratio: int, seed: int = 0) -> Chain:
    """Equal stages whose bundle is `ratio` times their output; backward twice the forward."""
    return _chain([(1, 2, 10, 10 * ratio, 0, 0)] * stages, 10)


def random_chain(stages: int, seed: int) -> Chain:
    """Times, sizes and workspaces drawn for each stage."""
    draw = Draw(seed)
    rows = []
    for _ in range(stages):
        forward, output = draw.between(1, 20), draw.between(5, 60)
        saved = output + draw.between(0, 120)
        rows.append(
            (
                forward,
                forward + draw.between(0, 2 * forward),
                output,
                saved,
                draw.between(0, 20),
                draw.between(0, 30),
            )
        )
    return _chain(rows, draw.between(5, 40))


def heavy_chain(stages: int, seed: int) -> Chain:
    """A few stages far larger and slower than the rest."""
    draw = Draw(seed)
    rows = []
    for _ in range(stages):
        forward, output = draw.heavy(1, 80), draw.heavy(4, 300)
        rows.append((forward, 2 * forward, output, output + draw.heavy(6, 600), 0, output // 2))
    return _chain(rows, 20)


def pyramid_chain(stages: int, seed: int) -> Chain:
    """Activations shrink by half in steps, work stays about the same: a convolutional network."""
    draw = Draw(seed)
    rows = []
    for i in range(stages):
        output = 640 >> (5 * i // stages)
        forward = 10 + draw.between(0, 4)
        rows.append((forward, 2 * forward, output, 4 * output, output // 2, output))
    return _chain(rows, 300)


def waist_chain(stages: int, seed: int) -> Chain:
    """Large at both ends, small in the middle: an autoencoder."""
    draw = Draw(seed)
    rows = []
    for i in range(stages):
        away = abs(2 * i - stages + 1)
        output = 10 + 200 * away * away // (stages * stages)
        forward = 5 + draw.between(0, 10)
        rows.append((forward, 2 * forward, output, 3 * output + draw.between(0, 20), 5, 10))
    return _chain(rows, 210)


def blocks_chain(stages: int, seed: int) -> Chain:
    """Two kinds of stage that alternate, like attention and feed-forward, and a large head."""
    draw = Draw(seed)
    kinds = [
        (draw.between(4, 9), 16, draw.between(60, 140), draw.between(0, 40)),
        (draw.between(6, 12), 16, draw.between(80, 120), draw.between(0, 40)),
    ]
    rows = []
    for i in range(stages - 1):
        forward, output, saved, workspace = kinds[i % 2]
        rows.append((forward, 2 * forward, output, saved, workspace, workspace))
    rows.append((draw.between(5, 30), 40, 120, 260, 120, 120))
    return _chain(rows, 16)


def _chain(rows: Sequence[tuple[int, int, int, int, int, int]], input_bytes: int) -> Chain:
    forward, backward, output, saved, f_workspace, b_workspace = zip(*rows, strict=True)
    return Chain.from_arrays(
        "chain",
        input_bytes,
        forward_s=forward,
        backward_s=backward,
        output_bytes=output,
        saved_bytes=saved,
        forward_workspace_bytes=f_workspace,
        backward_workspace_bytes=b_workspace,
    )


# --- graphs ----------------------------------------------------------------------------------


@dataclass
class Forward:
    """A forward pass that is being built; `training` adds the loss and the backward.

    Attributes
    ----------
    nodes
        (name, tensors read, time, bytes of the output, whether its backward needs its inputs, and
        its output, workspace).
    """

    inputs: dict[str, int]
    nodes: list[tuple[str, tuple[str, ...], int, int, bool, bool, int]] = field(
        default_factory=list
    )

    def add(
        self,
        reads: Sequence[str],
        time: int,
        size: int,
        *,
        needs_inputs: bool = True,
        needs_output: bool = False,
        workspace: int = 0,
    ) -> str:
        """One more op; the name of its output."""
        name = f"t{len(self.nodes)}"
        reads = tuple(dict.fromkeys(reads))
        self.nodes.append((name, reads, time, size, needs_inputs, needs_output, workspace))
        return name

    def training(self) -> Graph:
        """The step: forwards, a loss of the last output, and a backward op for each forward op.

        A backward op reads the gradients that arrive for its output, and what it needs of the
        forward; it writes a gradient for each tensor that its op read, but the step's inputs. An op
        whose output nothing reads has no backward.
        """
        last = self.nodes[-1]
        arriving: dict[str, list[str]] = {node[0]: [] for node in self.nodes}
        sizes = {**self.inputs, **{node[0]: node[3] for node in self.nodes}}
        ops = [Op(f"f.{n[0]}", "forward", n[2], n[6], n[1], {n[0]: n[3]}) for n in self.nodes]
        arriving[last[0]].append("d.loss")
        ops.append(Op("loss", "loss", 1, 0, (last[0],), {"d.loss": last[3]}))
        for name, reads, time, _, needs_inputs, needs_output, workspace in reversed(self.nodes):
            if not arriving[name]:
                continue
            wanted = [*arriving[name], *(reads if needs_inputs else ())]
            wanted += [name] if needs_output else []
            writes = {}
            for read in reads:
                if read not in self.inputs:
                    writes[f"d.{name}.{read}"] = sizes[read]
                    arriving[read].append(f"d.{name}.{read}")
            ops.append(Op(f"b.{name}", "backward", 2 * time, workspace, tuple(wanted), writes))
        return Graph("graph", tuple(ops), self.inputs)

    def inference(self) -> Graph:
        """The forward alone; outputs that nothing reads are results."""
        read = {name for node in self.nodes for name in node[1]}
        ops = tuple(Op(f"f.{n[0]}", "forward", n[2], n[6], n[1], {n[0]: n[3]}) for n in self.nodes)
        results = tuple(node[0] for node in self.nodes if node[0] not in read)
        return Graph("graph", ops, self.inputs, 0, results)


def unit_line(ops: int, seed: int = 0) -> Graph:
    """Unit ops in a line; a backward reads the output and the input of its forward."""
    step, last = Forward({"x": 1}), "x"
    for _ in range(ops):
        last = step.add([last], 1, 1, needs_output=True)
    return step.training()


def residual(blocks: int, seed: int) -> Graph:
    """Blocks of three ops and a sum with what came in; every third block shrinks by half."""
    draw, step = Draw(seed), Forward({"x": 96})
    last, size = "x", 96
    for i in range(blocks):
        size = max(12, size // 2) if i % 3 == 2 else size
        inner = step.add([last], draw.between(4, 12), size)
        inner = step.add([inner], 1, size, needs_inputs=False, needs_output=True)
        inner = step.add([inner], draw.between(4, 12), size, workspace=draw.between(0, 20))
        last = step.add([last, inner], 1, size, needs_inputs=False)
    return step.training()


def u_net(levels: int, seed: int) -> Graph:
    """Down by halves, up again, with the way down joined to the way up."""
    draw, step = Draw(seed), Forward({"x": 256})
    last, size, kept = "x", 256, []
    for _ in range(levels):
        last = step.add([last], draw.between(5, 15), size)
        last = step.add([last], draw.between(5, 15), size, needs_output=True)
        kept.append((last, size))
        size //= 2
        last = step.add([last], 1, size)
    last = step.add([last], draw.between(5, 15), size)
    for skip, wide in reversed(kept):
        last = step.add([last], draw.between(2, 6), wide)
        joined = step.add([last, skip], 1, 2 * wide, needs_inputs=False)
        last = step.add([joined], draw.between(8, 20), wide)
    return step.training()


def dense(ops: int, seed: int) -> Graph:
    """Each op reads the outputs of all before it in its block, as DenseNet does."""
    draw, step = Draw(seed), Forward({"x": 40})
    block, size = ["x"], 40
    for i in range(ops):
        if i % 5 == 4:
            block, size = [step.add(block, draw.between(3, 9), 2 * size)], max(10, size // 2)
            continue
        joined = step.add(block, 1, size * len(block), needs_inputs=False)
        block.append(step.add([joined], draw.between(3, 12), size))
    return step.training()


def inception(modules: int, seed: int) -> Graph:
    """Four branches of one to three ops, joined."""
    draw, step = Draw(seed), Forward({"x": 120})
    last, size = "x", 120
    for i in range(modules):
        ends = []
        for branch in range(4):
            inner, width = last, max(8, size // draw.between(3, 6))
            for _ in range(1 + branch % 3):
                inner = step.add([inner], draw.between(2, 14), width, needs_output=True)
            ends.append(inner)
        size = max(24, size * 3 // 4) if i % 2 else size
        last = step.add(ends, 1, size, needs_inputs=False)
    return step.training()


def recurrent(steps: int, layers: int, seed: int) -> Graph:
    """An unrolled network: each cell reads the one before it and the one below it."""
    draw = Draw(seed)
    step = Forward({f"x{t}": 16 for t in range(steps)})
    costs = [(draw.between(4, 10), draw.between(20, 60)) for _ in range(layers)]
    before: list[str] = []
    for t in range(steps):
        below, now = f"x{t}", []
        for layer, (time, size) in enumerate(costs):
            reads = [below, *before[layer : layer + 1]]
            below = step.add(reads, time, size, needs_output=True)
            now.append(below)
        before = now
    step.add(before, 3, 20)
    return step.training()


def encoder_decoder(layers: int, seed: int) -> Graph:
    """Two stacks; every layer of the second reads the end of the first."""
    draw, step = Draw(seed), Forward({"x": 48, "y": 48})
    last = "x"
    for _ in range(layers):
        inner = step.add([last], draw.between(6, 14), draw.between(60, 160), needs_output=True)
        last = step.add([last, inner], draw.between(6, 14), 48)
    memory, last = last, "y"
    for _ in range(layers):
        inner = step.add([last], draw.between(6, 14), draw.between(60, 160), needs_output=True)
        across = step.add([inner, memory], draw.between(6, 14), draw.between(60, 160))
        last = step.add([last, across], draw.between(6, 14), 48)
    return step.training()


def layered(ops: int, seed: int) -> Graph:
    """Ops in layers that read what is near, sometimes far; a true backward."""
    return _layered(ops, seed).training()


def layered_inference(ops: int, seed: int) -> Graph:
    """The same without a backward: what is recomputed was evicted for want of memory alone."""
    return _layered(ops, seed).inference()


def _layered(ops: int, seed: int) -> Forward:
    draw, step = Draw(seed), Forward({"x": draw_size(seed)})
    layers = [["x"]]
    while len(step.nodes) < ops - 1:
        wide = draw.between(1, 4)
        near = layers[-1] + (layers[-2] if len(layers) > 1 else [])
        far = [name for layer in layers for name in layer]
        now = []
        for _ in range(wide):
            reads = draw.one_of(near, draw.between(1, 2))
            reads += draw.one_of(far, 1) if draw.happens(0.15) else []
            now.append(
                step.add(
                    reads,
                    draw.between(1, 20),
                    draw.between(5, 80),
                    needs_inputs=draw.happens(0.8),
                    needs_output=draw.happens(0.4),
                    workspace=draw.between(0, 20),
                )
            )
        layers.append(now)
    read = {name for node in step.nodes for name in node[1]}
    ends = [node[0] for node in step.nodes if node[0] not in read]
    step.add(ends, draw.between(1, 10), draw.between(5, 40))
    return step


def draw_size(seed: int) -> int:
    """Bytes of the input of a layered graph."""
    return Draw(seed + 1_000_003).between(5, 60)


FAMILIES: dict[str, Callable[..., Chain | Graph]] = {
    function.__name__: function
    for function in (
        uniform_chain,
        random_chain,
        heavy_chain,
        pyramid_chain,
        waist_chain,
        blocks_chain,
        unit_line,
        residual,
        u_net,
        dense,
        inception,
        recurrent,
        encoder_decoder,
        layered,
        layered_inference,
    )
}
