"""Three public reports on memory under torch.compile, rebuilt small, before and after.

    OMP_NUM_THREADS=1 python benchmarks/compiled_cases.py [knob] [knapsack] [twice]

- ``knob`` (pytorch#197838): the peak over settings of ``activation_memory_budget``.
- ``knapsack`` (pytorch#197871): whether the solver behind it keeps its own bound.
- ``twice`` (pytorch#193193): checkpointed blocks that a step runs twice, eager and compiled.

*Before* is torch.compile with ``aot_eager_decomp_partition``, which splits and recomputes as
inductor does and needs no C++ compiler (``--backend inductor`` for that one); *after* is
``rematerialize(compile=True)``. The models are made to the reports' descriptions, not copied. Peaks
are the CPU allocator's record of a step, with what is resident on top.
"""

from __future__ import annotations

import argparse
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from schedsim.validation.measure import AllocatorMeter, storage_bytes
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import schedsim
from schedsim.errors import InfeasibleBudgetError

BUDGETS = (1.0, 0.5, 0.3, 0.2, 0.15, 0.1, 0.05, 0.0)
RESULTS = Path(__file__).parent / "results" / "compiled-cases.md"


class Block(nn.Module):
    """A residual feed-forward layer; with a context, that is added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """The layer's output."""
        y = self.norm(x if context is None else x + context)
        return x + self.down(nn.functional.gelu(self.up(y)))


class Stack(nn.Module):
    """Equal layers."""

    def __init__(self, num: int, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(num))

    def forward(self, x: Tensor) -> Tensor:
        """Through all layers."""
        for block in self.blocks:
            x = block(x)
        return x


class Twice(nn.Module):
    """The same layers without a context and then with one, as a contrastive captioner runs them."""

    def __init__(self, num: int, width: int, checkpointed: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(num))
        self.checkpointed = checkpointed

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """The sum of both traversals."""
        return self._through(x, None) + self._through(x, context)

    def _through(self, x: Tensor, context: Tensor | None) -> Tensor:
        for block in self.blocks:
            if self.checkpointed:
                x = checkpoint(block, x, context, use_reentrant=False)
            else:
                x = block(x, context)
        return x


def mean_square(output: Tensor) -> Tensor:
    """A loss."""
    return output.square().mean()


def peak_bytes(model: nn.Module, inputs: Any, step: Callable[[], Tensor]) -> int:
    """Measured, warm, with parameters and inputs."""

    def run() -> None:
        step().backward()  # type: ignore[no-untyped-call]

    for _ in range(2):
        run()
        model.zero_grad()
    [reading] = AllocatorMeter().read(run)
    model.zero_grad()
    return storage_bytes([list(model.parameters()), inputs]) + reading.peak_bytes


def theirs(model: nn.Module, inputs: Any, backend: str, budget: float = 1.0) -> int:
    """Peak of a step under torch.compile."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda *given: mean_square(model(*given)), backend=backend)
    with torch._functorch.config.patch(activation_memory_budget=budget):
        return peak_bytes(model, inputs, lambda: compiled(*inputs))


def ours(model: nn.Module, inputs: Any) -> Any:
    """Compiled once; budgets by `replan`."""
    return schedsim.rematerialize(
        model, inputs, "100%", mean_square, compile=True, effort=2.0, time_limit_s=120.0
    )


def within(module: Any, model: nn.Module, inputs: Any, budget_bytes: int) -> tuple[int, float]:
    """Measured peak and planned overhead of our step within `budget_bytes`.

    Raises
    ------
    InfeasibleBudgetError
        No plan.
    """
    module.replan(budget_bytes)
    planned = module.prepare(*inputs)
    return peak_bytes(model, inputs, lambda: planned.module(*inputs)), planned.plan.overhead


def megabytes(size_bytes: int) -> str:
    """Two digits behind the point."""
    return f"{size_bytes / 1e6:.2f}"


def knob(backend: str) -> list[str]:
    """Peaks over the settings, and what ours does with each such peak as its budget."""
    torch.manual_seed(0)
    model, inputs = Stack(16, 64), (torch.randn(512, 64),)
    module = ours(model, inputs)
    lines = [
        "## A budget that costs memory (pytorch#197838)",
        "",
        "16 layers. What the knob gives, and ours with its peak for a budget, in MB:",
        "",
        "| activation_memory_budget | its peak | our budget | our measured peak | our overhead |",
        "|---:|---:|---:|---:|---:|",
    ]
    for budget in BUDGETS:
        peak = theirs(model, inputs, backend, budget)
        try:
            found, overhead = within(module, model, inputs, peak)
            text = f"{megabytes(peak)} | {megabytes(found)} | {overhead:+.1%}"
        except InfeasibleBudgetError:
            text = f"{megabytes(peak)} | infeasible | "
        lines.append(f"| {budget:g} | {megabytes(peak)} | {text} |")
    most = module.plan.peak_bytes or 0
    lines += ["", "Ours alone, from the largest budget down:", ""]
    lines += ["| budget | measured peak | overhead |", "|---:|---:|---:|"]
    module.replan("100%")
    most = module.prepare(*inputs).plan.peak_bytes
    for share in (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2):
        try:
            found, overhead = within(module, model, inputs, int(share * most))
            text = f"{megabytes(found)} | {overhead:+.1%}"
        except InfeasibleBudgetError:
            text = "infeasible | "
        lines.append(f"| {megabytes(int(share * most))} | {text} |")
    return [*lines, ""]


def knapsack(_: str) -> list[str]:
    """How often the solver's answer is above its bound; plans of ours are replayed first."""
    from torch._functorch._activation_checkpointing import knapsack as solvers

    lines = [
        "## A solver that exceeds its bound (pytorch#197871)",
        "",
        "2,000 random instances of 3 to 12 items whose sizes are shares of all, half allowed:",
        "",
        "| solver | answers above the bound | worst |",
        "|---|---:|---:|",
    ]
    for name in ("dp_knapsack", "dp_knapsack_sliding_hirschberg", "greedy_knapsack"):
        solve = getattr(solvers, name, None)
        if solve is None:
            lines.append(f"| {name} | not in torch {torch.__version__} | |")
            continue
        generator, above, worst = random.Random(0), 0, 0.0
        for _ in range(2000):
            raw = [generator.random() for _ in range(generator.randint(3, 12))]
            memory = [size / sum(raw) for size in raw]
            times = [generator.random() for _ in raw]
            _, saved, _ = solve(memory, times, 0.5)
            over = sum(memory[i] for i in saved) - 0.5
            above += over > 1e-9
            worst = max(worst, over / 0.5)
        lines.append(f"| {name} | {above} of 2000 | {worst:+.2%} |")
    return [
        *lines,
        "",
        "The bound is on saved bytes besides, not on the peak. A plan of ours is replayed on exact",
        "sizes before it is returned, whatever solver found it, and a compiled step is measured.",
        "",
    ]


def twice(backend: str) -> list[str]:
    """Two traversals of the same blocks in one graph."""
    width, num = 64, 8
    inputs = (torch.randn(512, width), torch.randn(512, width))

    def built(checkpointed: bool) -> Twice:
        torch.manual_seed(0)
        return Twice(num, width, checkpointed)

    plain, blocks = built(False), built(True)
    eager = peak_bytes(blocks, inputs, lambda: mean_square(blocks(*inputs)))
    rows = [
        ("eager", peak_bytes(plain, inputs, lambda: mean_square(plain(*inputs))), ""),
        ("eager, checkpoint per block", eager, ""),
        ("torch.compile", theirs(plain, inputs, backend), ""),
        ("torch.compile, checkpoint per block inside", theirs(blocks, inputs, backend), ""),
    ]
    module = ours(plain, inputs)
    for title, budget in (("eager's checkpointed peak", eager), ("half of that", eager // 2)):
        try:
            found, overhead = within(module, plain, inputs, budget)
            rows.append((f"ours, compiled, within {title}", found, f"{overhead:+.1%}"))
        except InfeasibleBudgetError:
            rows.append((f"ours, compiled, within {title}", 0, ""))
    lines = [
        "## Checkpointed blocks that run twice (pytorch#193193)",
        "",
        f"{num} blocks, run without a context and then with one, in MB:",
        "",
        "| step | peak | of eager's checkpointed | overhead |",
        "|---|---:|---:|---:|",
    ]
    for title, peak, overhead in rows:
        text = f"{megabytes(peak)} | {peak / eager:.2f}" if peak else "infeasible |"
        lines.append(f"| {title} | {text} | {overhead} |")
    return [*lines, ""]


CASES = {"knob": knob, "knapsack": knapsack, "twice": twice}


def main() -> None:
    """Run the cases asked for, and write the page where all are."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--backend", default="aot_eager_decomp_partition")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    head = ["# Public cases", "", "Made by `python benchmarks/compiled_cases.py`: see there.", ""]
    lines = [*head, f"torch {torch.__version__}, *theirs* with the backend {args.backend}.", ""]
    for name in args.cases:
        lines += CASES[name](args.backend)
        print("\n".join(lines), flush=True)
        args.results.write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    main()
