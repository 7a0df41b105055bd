"""Which gradients are none where some are not given, of graphs with functions of the user's own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from ...autocasts import Autocast
from ...torch_private.fake_tensors import without_memory
from ...torch_private.graph_halves import compiled_in_halves
from ...torch_private.graph_roles import output_roles
from .gradient_layouts import second_trace

if TYPE_CHECKING:
    from ..session import Session
    from .joint_part import GivenGradient


class OwnZeros:
    """Asks autograd to which arguments of a graph no gradient comes.

    The backward of a `torch.autograd.Function` with several outputs runs where a gradient of one of
    them comes: it is given zeros for the others, and what it makes of these are zeros, which an
    optimizer tells from no gradient. The ops of the graph do not show that, as they are those of
    the function's backward alone.

    Parameters
    ----------
    graph_module, examples
        Dynamo's graph, and the arguments that it was traced for.
    """

    def __init__(
        self, session: Session, graph_module: torch.fx.GraphModule, examples: Sequence[Any]
    ) -> None:
        self._session, self._graph_module = session, graph_module
        self._autocast = Autocast.now()
        self._examples: list[Any] | None = None
        with suppress(Exception):  # of a tensor that cannot be without memory
            self._examples = without_memory(examples)

    def ungiven(
        self, given: Sequence[GivenGradient], lacking: Collection[int], autocast: Autocast
    ) -> list[int]:
        """Arguments to which no gradient comes where those of `given` that are `lacking` do not.

        Where that cannot be traced, all get zeros, as from `torch.compile`.
        """
        found: list[int] = []
        if self._examples is None:
            return found

        def note(joint: torch.fx.GraphModule, num_outputs: int, *_: Any) -> Any:
            roles = output_roles(joint.graph)[num_outputs:]
            found[:] = [at for at, (node, _) in enumerate(roles) if node is None]
            return SimpleNamespace(forward=None, backward=None)

        try:
            with second_trace(self._session, self._examples, self._autocast, autocast):
                strides = {given[i].output: None for i in lacking}
                compiled_in_halves(self._graph_module, self._examples, note, strides)
        except Exception:  # whatever a second trace raises
            return []
        return found
