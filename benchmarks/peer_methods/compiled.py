"""``activation_memory_budget`` of torch.compile, by the backend aot_eager_decomp_partition."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch import config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils.flop_counter import FlopCounterMode

from .eager import Step
from .subjects import Subject


class CountingBackend:
    """The backend ``aot_eager_decomp_partition``, with a count of what its graphs run.

    A mode around a compiled function makes the compiler step aside, so the mode is entered inside.

    Attributes
    ----------
    flops
        Operations of the graphs run while `counts`.
    """

    def __init__(self) -> None:
        self.counts = False
        self.flops = 0

    def __call__(self, graph: Any, inputs: list[Any]) -> Callable[..., Any]:
        """Compile `graph`: decomposed as for inductor, split by its partitioner, run op by op."""
        made: Callable[..., Any] = aot_autograd(
            fw_compiler=self._leave,
            bw_compiler=self._leave,
            decompositions=lambda: import_module(
                "torch._inductor.compile_fx"
            ).select_decomp_table(),
            partition_fn=partial(min_cut_rematerialization_partition, compiler="inductor"),
        )(graph, inputs)
        return made

    def _leave(self, module: Any, inputs: list[Any]) -> Any:
        run = boxed_nop(module, inputs)

        def counted(arguments: list[Any]) -> Any:
            if not self.counts:
                return run(arguments)
            with FlopCounterMode(display=False) as counter:
                results = run(arguments)
            self.flops += int(counter.get_total_flops())
            return results

        counted._boxed_call = True  # type: ignore[attr-defined]
        return counted


class CompiledStep:
    """A step under a memory budget: its forward pass is compiled when first called.

    Parameters
    ----------
    budget
        Share of the bytes that would be saved by default, 0 to 1.
    solver
        Solver of the knapsack over the tensors to save.
    """

    def __init__(self, subject: Subject, budget: float, solver: str) -> None:
        self.settings: dict[str, Any] = {
            "activation_memory_budget": budget,
            "activation_memory_budget_solver": solver,
        }
        self.backend = CountingBackend()

        def forward() -> Tensor:
            return subject.loss(subject.output())

        # A compiled function is remembered by its code: this one must not find another's.
        torch._dynamo.reset()
        self.compiled = torch.compile(forward, backend=self.backend)

    def __call__(self) -> Tensor:
        """The loss."""
        with config.patch(self.settings):
            loss: Tensor = self.compiled()
        return loss

    def count_flops(self) -> int:
        """Operations of a forward and a backward pass."""
        self.backend.counts, self.backend.flops = True, 0
        try:
            self().backward()  # type: ignore[no-untyped-call]
        finally:
            self.backend.counts = False
        return self.backend.flops


def compiled(subject: Subject, budget: float, solver: str) -> Step:
    """The whole step, model and loss, under ``activation_memory_budget``."""
    return CompiledStep(subject, budget, solver)
