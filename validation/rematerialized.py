"""A model that trains by a plan: its own parameters and state, another way through a step."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from schedsim.errors import SchedsimError, UnsupportedError
from schedsim.plans.plan import Plan

from .block_level.parts import OtherPath
from .block_level.scheduled_blocks import plain_loss
from .capture.skeleton import count_extra_inputs
from .guards.asking import OtherAnswer
from .guards.plan_variants import PlainStepWarning
from .guards.saved_elsewhere import saved_elsewhere
from .ranks.wrappers import is_averaged, refuse_hidden_parameters, refusing_passes
from .torch_private.module_tables import tables_of
from .ways.way import Way
from .whole_step.captured_step import CapturedStep
from .whole_step.module_plans import ModulePlans
from .whole_step.plan_maker import Coming
from .whole_step.staying_gradients import see_gradients, see_wrapper
from .whole_step.step_planning import PlannedStep
from .whole_step.step_report import counted, report_dict, report_lines
from .whole_step.step_settings import Settings
from .whole_step.uncounted_states import see_states


class Rematerialized(nn.Module):
    """``module(*inputs)`` gives the loss of a training step that stays within a budget.

    Parameters, buffers, submodules and so the keys of `state_dict` are the model's own, not
    copies; other attributes are looked up on the model too. In eval mode and under no_grad the
    plain model runs: called with all inputs of a step it gives the loss, with the model's own
    inputs alone the model's output.

    Attributes
    ----------
    plan : Plan
        For the inputs that it was made with; `last_plan` is of the last step's.
    level : str
        ``"op"`` or ``"block"``.
    """

    def __init__(
        self, model: nn.Module, settings: Settings, *, shapes: str = "plan", max_shapes: int = 8
    ) -> None:
        super().__init__()
        hidden = self.__dict__  # not registered: its contents are, below
        hidden["_model"] = model
        hidden.update(tables_of(model))
        self.training = model.training
        self._plans = ModulePlans(self, model, settings, shapes, max_shapes)
        hidden["forward"] = _Forward(self)

    # -- a step -------------------------------------------------------------------------------

    def prepare(self, *inputs: Any, **keywords: Any) -> PlannedStep:
        """Plan for inputs like these, where that is not done yet; nothing is run.

        All ranks that are bound to one plan call this in every step: if one of them has no plan
        yet, all of them plan.

        Raises
        ------
        SchedsimError
            They are of another shape than the first, and ``shapes="raise"``.
        UnsupportedError
            Such steps run as the model itself runs them; the message says why.
        """
        key = self._plans.full_key(inputs, keywords, "plans a step")
        planned = self._plans.step_for(key, inputs, keywords)
        if planned is None:
            raise UnsupportedError(self._plans.planned[key].reasons[-1], hint="a step still runs")
        return planned

    def plan_for(self, *inputs: Any, **keywords: Any) -> None:
        """As `prepare`, also where the plan is for later steps than the first."""
        key = self._plans.full_key(inputs, keywords, "plans a step")
        if self._plans.settings.largest:
            self._plans.step_of_many(key, inputs, keywords)
        self._plans.step_for(key, inputs, keywords)

    def adopt(self, captured: CapturedStep, plan: Plan, inputs: Any, keywords: Any) -> None:
        """Run steps with inputs like these by `plan`.

        In the place of the plan that was there for such inputs: a schedule may change with the
        stage of training.
        """
        self._plans.adopt(captured, plan, inputs, keywords)

    def use(self, plan: Plan, *inputs: Any, **keywords: Any) -> None:
        """Run steps with inputs like these by `plan` from now on.

        A schedule may change with the stage of training, as when a batch grows or memory is needed
        elsewhere: plans of this module, or loaded ones, change places between steps at the price of
        one capture, and later steps of these inputs cost nothing.

        Raises
        ------
        SchedsimError
            The plan is of another step; the message names what differs.
        """
        self._plans.use(plan, inputs, keywords)

    def replan(self, budget: int | str) -> None:
        """Forget all plans; steps are planned anew within `budget` when they come.

        Captures and measurements of the shapes seen are kept. If there are several ranks, all call
        it.
        """
        self._plans.replan(budget)

    def _step(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        with self._plans.settings.ranks.leaving(is_averaged=is_averaged(self)):
            return self._run_step(inputs, keywords)

    def _run_step(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        if not self.training or not torch.is_grad_enabled():
            self._plans.evaluation_begins()
            return self._plain(inputs, keywords)
        plans = self._plans
        see_wrapper(plans)
        key, why = plans.full_key(inputs, keywords), ""
        if key not in plans.planned and plans.shapes == "plan":
            with self._failing_alike(inputs, keywords), refusing_passes(self):
                many = plans.step_of_many(key, inputs, keywords)
            if many is not None:
                return plans.last.shaped(many(*inputs, **keywords))
        with self._failing_alike(inputs, keywords):
            see_gradients(plans, key, inputs, keywords)
        tried: tuple[PlannedStep, ...] = ()
        while True:
            with self._failing_alike(inputs, keywords):
                with refusing_passes(self):
                    planned = plans.step_for(key, inputs, keywords, tried, why)
                if planned is not None and planned.captured.level == "block":
                    refuse_hidden_parameters(self)
                if planned is not None and not plans.still_checked(key, planned, inputs, keywords):
                    continue
            if planned is None:
                return self._plain(inputs, keywords)
            see_states(plans, planned)
            try:
                return planned.shaped(planned.module(*inputs, **keywords))
            except OtherAnswer as error:
                tried, why = (*tried, planned), error.message
            except OtherPath as error:
                if not plans.settings.bound_ranks.alone:
                    raise  # the other ranks go on with the plan
                variants, name = plans.planned[key], type(self._model).__name__
                variants.say(
                    f"{name}: a step runs as it is, not within the budget: {error.message}",
                    PlainStepWarning,
                )
                return self._plain(inputs, keywords)

    @contextmanager
    def _failing_alike(
        self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Iterator[None]:
        """Where the model's own error ends the planning of a step, fail as the plain step does.

        Planning restores what it runs. A loop that catches the error, to leave the batch out, goes
        on with the generators, buffers and attributes that the failing forward has left.
        """
        try:
            yield
        except SchedsimError:
            raise
        except Exception:
            if self._plans.settings.ranks.alone:  # others would miss this rank in the plain step
                with saved_elsewhere([*self._model.parameters(), *self._model.buffers()]):
                    self._plain(inputs, keywords)
            raise

    def _plain(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        loss = self._plans.settings.loss
        if loss is None or len(inputs) != self._plans.num_inputs:
            return self._model(*inputs, **keywords)
        num_extra = count_extra_inputs(self._model, loss, len(inputs))
        return plain_loss(self._model, loss, inputs, keywords, num_extra)

    # -- what was planned ---------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The plan for the inputs that it was made with, or for those given to `use` since then.

        After `replan` they are those of the next step. Steps of other shapes do not change it:
        theirs are `last_plan` and `plans`.
        """
        return self._plans.plan

    @property
    def last_plan(self) -> Plan:
        """The plan for the inputs of the last step."""
        return self._plans.last.plan

    @property
    def plans(self) -> list[Plan]:
        """All plans kept, the last used last."""
        return [step.plan for variants in self._plans.planned.values() for step in variants.steps]

    @property
    def level(self) -> str:
        """``"op"`` or ``"block"``."""
        return self._plans.last.captured.level

    @property
    def budget_bytes(self) -> int:
        """The budget in bytes."""
        self._plans.last  # noqa: B018 - raises where nothing is planned
        assert self._plans.maker.budget_bytes is not None
        return self._plans.maker.budget_bytes

    @property
    def model(self) -> nn.Module:
        """The plain model."""
        model: nn.Module = self._model
        return model

    @property
    def run_counts(self) -> dict[str, int]:
        """Op -> number of runs in the last step."""
        counts: dict[str, int] = self._plans.last.module.run_counts  # type: ignore[assignment]
        return counts

    def counted(self) -> dict[str, int]:
        """Bytes at the predicted peak by what they are; their sum is the peak."""
        return counted(self._plans.last)

    def report(self) -> str:
        """A report for people: what was counted and how, the predicted peak and overhead."""
        return "\n".join([*report_lines(self._plans.last), *self._plans.many_sizes.reports])

    @property
    def ways(self) -> list[Way]:
        """The ways to spend less that were looked at for the last step's inputs, with prices."""
        return list(self._plans.last.ways)

    def to_dict(self) -> dict[str, Any]:
        """The content of `report`, for JSON."""
        return report_dict(self._plans.last)

    # -- being the model ----------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            model = self.__dict__.get("_model")
            if model is None or name.startswith("__"):
                raise
            return getattr(model, name)

    def train(self, mode: bool = True) -> Rematerialized:
        """Set the mode of the model."""
        self._model.train(mode)
        self.training = mode
        return self

    def _apply(self, *arguments: Any, **keywords: Any) -> Any:
        # Plans of another device or number format stay: they have other keys.
        self._model._apply(*arguments, **keywords)
        return self

    def state_dict(self, *arguments: Any, **keywords: Any) -> Any:
        """The model's."""
        return self._model.state_dict(*arguments, **keywords)

    def load_state_dict(self, *arguments: Any, **keywords: Any) -> Any:
        """The model's."""
        return self._model.load_state_dict(*arguments, **keywords)

    def _load_from_state_dict(self, *arguments: Any, **keywords: Any) -> None:
        self._model._load_from_state_dict(*arguments, **keywords)

    def named_modules(
        self, memo: Any = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """The model's submodules, and this module for the model itself."""
        memo = set() if memo is None else memo
        if self not in memo:
            if remove_duplicate:
                memo.add(self)
            yield prefix, self
            for name, child in self._modules.items():
                if child is not None:
                    path = f"{prefix}.{name}" if prefix else name
                    yield from child.named_modules(memo, path, remove_duplicate)

    def __deepcopy__(self, memo: Any) -> Rematerialized:
        # A schedule is bound to its model's tensors: the copy plans for its own.
        model = copy.deepcopy(self._model, memo)
        plans, maker = self._plans, self._plans.maker
        made = Rematerialized(
            model, maker.settings, shapes=plans.shapes, max_shapes=maker.max_shapes
        )
        its = made._plans
        its.maker.budget_bytes, its.num_inputs = maker.budget_bytes, plans.num_inputs
        its.maker.coming = Coming.PERHAPS  # one rank alone may make a copy
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UnsupportedError(
            "a rematerialized module is not pickled: its schedule is code bound to the model",
            hint="save state_dict(), which the plain model loads too, and the plan with "
            "schedsim.save; then schedsim.apply",
        )


class _Forward:
    """The forward of a module, with the parameters of the model's own."""

    def __init__(self, module: Rematerialized) -> None:
        # A compiler around the module would trace the planner; it shall step over the whole step.
        # Blocks that are compiled inside the model stay compiled.
        self._step: Any = torch.compiler.disable(module._step)  # type: ignore[no-untyped-call]
        self.__name__ = "forward"
        if module._plans.settings.loss is None:
            self.__signature__ = inspect.signature(module._model.forward)

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        return self._step(inputs, keywords)
