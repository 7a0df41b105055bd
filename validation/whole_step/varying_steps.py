"""Whole steps whose sizes differ: one trace with open sizes, and schedules for all of them.

A plan for each shape takes seconds, and a loop over sentences has hundreds of shapes. From the
third shape on, the step with its loss runs as a model in place does: an order of ops is good for
every size, and the peak of each known order is evaluated at the sizes of the step that comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from schedsim.errors import InfeasibleBudgetError, SchedsimError

from ..block_level.scheduled_blocks import loss_of
from ..capture.skeleton import count_extra_inputs, run_step
from ..drop_in.drop_in_options import DropInOptions
from ..drop_in.in_place import in_place, session_in
from ..drop_in.rehearsal import rehearse_loop
from ..torch_private.dynamo_settings import left_open
from ..torch_private.pytrees import tree_map_only
from .step_settings import Settings

NUM_PLANNED_APART = 2
"""Shapes that get a plan of their own: a batch, and the shorter one at the end of an epoch."""

_OPTIONS = frozenset(("effort", "keep"))


class StepWithLoss(nn.Module):
    """A step's forward as one module: its output is the loss.

    Parameters
    ----------
    num_extra
        How many of the last inputs are the loss's.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor] | None, num_extra: int):
        super().__init__()
        self.model = model
        self.loss_function = loss
        self.num_extra = num_extra

    def forward(self, *inputs: Any, **keywords: Any) -> Tensor:
        """The loss."""
        found = run_step(self.model, self.loss_function, self.num_extra, inputs, keywords)
        return loss_of(found) if self.loss_function is None else found

    @property
    def budget_bytes(self) -> int | None:
        """The budget in bytes, which may have been given as a share."""
        return session_in(self).budget_bytes


def are_for_many_sizes(settings: Settings) -> bool:
    """Whether steps by `settings` can run by one plan for many sizes."""
    several = settings.chunk or settings.accumulate or settings.offload or settings.compile
    plain = not several and settings.level != "block" and settings.costs == "measured"
    return plain and settings.ranks.alone and set(settings.options) <= _OPTIONS


class ManySizes:
    """The steps of one model that run by one plan for many sizes, by what else they depend on."""

    def __init__(self) -> None:
        self._steps: dict[Any, StepWithLoss | None] = {}

    def clear(self) -> None:
        """Forget them."""
        self._steps.clear()

    @property
    def reports(self) -> list[str]:
        """For people: what was planned for each."""
        return [session_in(step).report() for step in self._steps.values() if step is not None]

    def step_for(
        self,
        leaves: Sequence[Any],
        known: Sequence[tuple[Sequence[Any], Any]] | None,
        rest: Any,
        make: Callable[[list[frozenset[int]]], StepWithLoss | None],
    ) -> StepWithLoss | None:
        """The step for inputs of the forms `leaves`; ``None`` where each shape has its own plan.

        Parameters
        ----------
        known
            Forms of the inputs that have plans of their own, each with what else it depends on;
            ``None`` where the sizes that differ were named, and the step is made at once.
        rest
            The same of the inputs that come.
        make
            Makes a step in which these dimensions of the tensors, in order, are left open.
        """
        kind = _without_sizes(leaves), rest
        if kind in self._steps:
            return self._steps[kind]
        if known is None:
            self._steps[kind] = make([])
            return self._steps[kind]
        alike = [others for others, its in known if (_without_sizes(others), its) == kind]
        if len(alike) < NUM_PLANNED_APART:
            return None
        shapes = [[leaf[0] for leaf in one if isinstance(leaf, tuple)] for one in [*alike, leaves]]
        differ = [
            frozenset(i for i, sizes in enumerate(zip(*own, strict=True)) if len(set(sizes)) > 1)
            for own in zip(*shapes, strict=True)
        ]
        self._steps[kind] = make(differ) if any(differ) else None
        return self._steps[kind]


def _without_sizes(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """Forms of inputs without sizes and strides, but with their numbers of dimensions."""
    return tuple((len(leaf[0]), *leaf[2:]) if isinstance(leaf, tuple) else leaf for leaf in leaves)


def make_step(
    model: nn.Module,
    settings: Settings,
    budget: int | str,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    open_sizes: Sequence[frozenset[int]],
) -> StepWithLoss | None:
    """A step for inputs of any size within the budget; ``None`` where none can be made.

    Parameters
    ----------
    open_sizes
        For each tensor among the inputs, the dimensions whose size differs from step to step.

    Raises
    ------
    InfeasibleBudgetError
        A step of the largest size that the caller has named does not fit.
    """
    step = StepWithLoss(model, settings.loss, count_extra_inputs(model, settings.loss, len(inputs)))
    own = {"optimizer": settings.optimizer, "extra_bytes": settings.extra_bytes}
    own |= {"planner": settings.planner, "time_limit_s": settings.time_limit_s}
    options = {"budget": budget, "check": settings.check, **own, **settings.options}
    options["largest"] = settings.largest
    if open_sizes:
        rest = iter(open_sizes)

        def marked(tensor: Tensor) -> Tensor:
            return left_open(tensor, next(rest))

        inputs, keywords = tree_map_only(Tensor, marked, (inputs, dict(keywords)))
    try:
        in_place(step, inputs, keywords, DropInOptions.read(options))
        if settings.largest and session_in(step).parts:
            rehearse_loop(step, inputs, keywords)
    except InfeasibleBudgetError:
        if settings.largest:
            raise
        return None
    except SchedsimError:
        return None  # a plan for this shape alone says what there is to say
    return step if session_in(step).parts else None
