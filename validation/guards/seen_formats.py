"""The number formats that a step computes in, whatever the formats of its results."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..torch_private.op_modes import TorchDispatchMode, chosen_branch
from ..torch_private.pytrees import tree_leaves

_COARSE = (torch.bfloat16, torch.float16)
"""The coarsest first."""


class SeenFormats(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees, while it is entered, in which formats ops give their results.

    Autocast within a model, or a cast by hand, leaves no trace in float32 gradients but their
    rounding.

    Examples
    --------
    >>> with SeenFormats() as seen:
    ...     _ = (torch.ones(2).bfloat16() * 3).float()
    >>> seen.coarsest
    torch.bfloat16
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found: set[torch.dtype] = set()

    @property
    def coarsest(self) -> torch.dtype | None:
        """The half-precision format of the fewest digits; ``None`` if there was none."""
        return next((one for one in _COARSE if one in self._found), None)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the op, and look at its results."""
        branch = chosen_branch(func, args)
        if branch is not None:
            with self:
                return branch()
        out = func(*args, **(kwargs or {}))
        self._found |= {leaf.dtype for leaf in tree_leaves(out) if isinstance(leaf, Tensor)}
        return out
