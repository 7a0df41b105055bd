"""One graph with open sizes as several parts: a part of fixed sizes for each that come.

Compiled code is made for the sizes of its tensors, and so are plans of steps whose blocks gather
their parameters. Where Dynamo has left sizes open, the graph is
traced again, at the first call of each new size, with its numbers in the place of the open ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...autocasts import Autocast
from ...guards.plan_variants import PlainStepWarning
from ...torch_private.dynamo_graphs import numbers_in_tensors, tracing_again, with_numbers
from ...torch_private.fake_tensors import is_symbolic, without_memory
from ...user_warnings import warn_user

if TYPE_CHECKING:
    from ..session import Session

MOST_SIZES = 16
"""The most sizes of one graph that are compiled; steps of others run uncompiled."""
MOST_PARTS = 64
"""The most sizes of one graph that are traced; steps of others run as they are."""

Key = tuple[Any, ...]

Trace = Callable[[torch.fx.GraphModule, Sequence[Any], bool], Callable[..., Any]]


class SizedParts:
    """What Dynamo calls for a graph with open sizes, in a session that plans each size.

    Parameters
    ----------
    trace
        Traces a graph for examples of its arguments, all of fixed sizes, and returns what is called
        with them; compiled or not.
    graph_module
        The graph.
    """

    def __init__(
        self,
        session: Session,
        trace: Trace,
        graph_module: torch.fx.GraphModule,
    ) -> None:
        self._session, self._trace, self._graph_module = session, trace, graph_module
        self._numbers = numbers_in_tensors(graph_module)
        self._autocast, self._with_grad = Autocast.now(), torch.is_grad_enabled()
        self._calls: dict[Key, Callable[..., Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Call the graph by the part for the sizes of `arguments`."""
        numbers = {at: float(arguments[at]) for at in self._numbers}
        key = (*sizes_of(arguments), *numbers.values())
        if key not in self._calls:
            if len(self._calls) >= MOST_PARTS:
                self._say(f"beyond {MOST_PARTS} sizes of one graph it runs as it is, not within")
                return self._graph_module(*arguments)
            self._calls[key] = self._made(arguments, numbers)
        return self._calls[key](*arguments)

    def _say(self, what: str) -> None:
        line = f"{what} the budget; pad inputs to a few sizes"
        if line not in self._session.check_note:
            self._session.note(line)
            warn_user(line, PlainStepWarning)

    def _made(self, arguments: Sequence[Any], numbers: Mapping[int, float]) -> Callable[..., Any]:
        compiled = len(self._calls) < MOST_SIZES
        if not compiled:
            self._say(f"beyond {MOST_SIZES} sizes of one graph it runs uncompiled, within")
        examples = without_memory(arguments)
        with (
            self._session.tracing(),
            tracing_again(examples),
            torch.set_grad_enabled(self._with_grad),
            self._autocast.entered(),
        ):
            graph_module = with_numbers(self._graph_module, numbers)
            return self._trace(graph_module, examples, compiled)


def has_open_sizes(examples: Sequence[Any]) -> bool:
    """Whether a trace left a number or a size among `examples` open."""
    return any(
        is_symbolic(it)
        or (isinstance(it, torch.Tensor) and any(is_symbolic(n) for n in (*it.shape, *it.stride())))
        for it in examples
    )


def sizes_of(arguments: Sequence[Any]) -> Key:
    """All numbers of the arguments that compiled code is made for."""
    return tuple(
        (tuple(it.shape), it.stride(), it.requires_grad) if isinstance(it, torch.Tensor) else it
        for it in arguments
    )
