"""A model that trains by a plan: its own parameters and state, another way through a step."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum, auto
from typing import Any

import torch
from torch import nn

from schedsim.errors import InfeasibleBudgetError, SchedsimError, UnsupportedError
from schedsim.plans.budgets import is_share
from schedsim.plans.plan import Plan

from .autocasts import Autocast, backward_within
from .block_level.parts import OtherPath
from .block_level.scheduled_blocks import ScheduledBlocks, plain_loss
from .capture.skeleton import count_extra_inputs
from .captured_step import CapturedStep
from .drop_in.saved_elsewhere import saved_elsewhere
from .guards.asking import OtherAnswer
from .guards.differential import Difference
from .guards.plan_variants import (
    MAX_VARIANTS,
    PlainStepWarning,
    ReplannedWarning,
    RoundingWarning,
    Variants,
)
from .guards.recording import kept_generators
from .ranks import ALONE, Ranks
from .ranks.buckets import averaging
from .ranks.members import communicates, is_spread
from .ranks.one_plan import check_one_plan
from .ranks.step_words import StepWord, agreed
from .ranks.wrappers import (
    is_averaged,
    refuse_hidden_parameters,
    refusing_passes,
    why_not_compared,
)
from .step_bound import kept_within
from .step_capture import BlockLevelWarning, capture_step
from .step_check import compare
from .step_inputs import check_step_inputs
from .step_key import key_difference, key_digest, step_key
from .step_planning import PlannedStep, plan_step, planned_step, resolved_budget, store_all_peak
from .step_report import counted, report_dict, report_lines
from .step_settings import Settings
from .torch_private.module_tables import tables_of
from .varying_steps import ManySizes, StepWithLoss, are_for_many_sizes, make_step
from .ways.choices import choose, wanted
from .ways.way import Way

SHAPES = ("plan", "raise")


class Coming(Enum):
    """Whether ranks that need not follow one plan make the next one together."""

    ALL = auto()
    PERHAPS = auto()
    NONE = auto()


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
        if shapes not in SHAPES:
            raise SchedsimError(f"shapes={shapes!r} is unknown", hint="'plan' or 'raise'")
        if max_shapes < 1:
            raise SchedsimError(f"max_shapes={max_shapes} keeps no plan", hint="give at least 1")
        super().__init__()
        hidden = self.__dict__  # not registered: its contents are, below
        hidden["_model"] = model
        hidden.update(tables_of(model))
        self.training = model.training
        self._settings, self._shapes, self._max_shapes = settings, shapes, max_shapes
        self._budget_bytes: int | None = None
        self._num_inputs: int | None = None
        self._num_steps = 0
        self._planned: OrderedDict[Any, Variants] = OrderedDict()
        self._captured: OrderedDict[Any, CapturedStep] = OrderedDict()
        self._own_key: Any = None  # of the inputs that it was made with
        self._own_plan: Plan | None = None  # for these, once its step is no longer kept
        self._many_sizes = ManySizes()
        self._changes = 0  # of plans, by the caller; the same on all ranks
        self._is_told_kept = settings.keep_gradients  # and not seen by a step
        self._is_adopted = self._counts_no_more = False
        self._bucket_bytes = 0  # of the wrapper that averages gradients, once a step has shown it
        self._coming = Coming.ALL  # which ranks plan the next step with this one
        self._common: frozenset[int] | None = None  # numbers of the plans that fit on all ranks
        self._num_plans = 0
        self._last_form: tuple[Any, str] | None = None
        self._backward_autocast = Autocast()  # in which the loop calls backward(), once it has
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
        key = self._full_key(inputs, keywords, "plans a step")
        planned = self._step_for(key, inputs, keywords)
        if planned is None:
            raise UnsupportedError(self._planned[key].reasons[-1], hint="a step still runs")
        return planned

    def plan_for(self, *inputs: Any, **keywords: Any) -> None:
        """As `prepare`, also where the plan is for later steps than the first."""
        key = self._full_key(inputs, keywords, "plans a step")
        if self._settings.largest:
            self._step_of_many(key, inputs, keywords)
        self._step_for(key, inputs, keywords)

    def _full_key(
        self, inputs: tuple[Any, ...], keywords: Mapping[str, Any], does: str = "runs a step"
    ) -> Any:
        """The values that a plan depends on, here and on the ranks that follow the same plan.

        These ranks tell each other what they do, and which plans fit, so that a rank with nothing
        new learns here that another one needs a plan.
        """
        ranks = self._settings.bound_ranks
        if ranks.alone:
            return step_key(self._model, inputs, keywords)
        key: Any = None

        def word() -> StepWord:
            nonlocal key
            if does == "runs a step":
                self._check_blocks(inputs, keywords)
            key = step_key(self._model, inputs, keywords)
            form = self._form_of(key)
            fitting = {
                full[-1]: tuple(step.number for step in variants.steps if step.change is None)
                for full, variants in self._planned.items()
                if full[-1][ranks.place] == form
            }
            return StepWord(does, form, str(Autocast.now()), self._changes, fitting)

        found = agreed(ranks.gather_from("start a step", word), ranks.members)
        self._common = found.numbers
        return (*key, found.forms)

    def _check_blocks(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        """Refuse here what a step by blocks refuses: later, other ranks would be in collectives."""
        steps = (step for variants in self._planned.values() for step in variants.steps)
        for step in steps:
            for part in step.module.modules():
                if isinstance(part, ScheduledBlocks):
                    part.check(inputs, keywords)
                    return

    def _form_of(self, key: Any) -> str:
        """The short form of `key`, which mostly is that of the step before."""
        if self._last_form is None or self._last_form[0] != key:
            self._last_form = (key, key_digest(key))
        return self._last_form[1]

    def _evaluation_begins(self) -> None:
        """Fail on all ranks where another one trains, if evaluating gathers parameters too."""
        ranks = self._settings.bound_ranks
        if not ranks.alone and is_spread(self._model):
            words = ranks.gather(StepWord("evaluates"), "start a step")
            agreed(words, ranks.members)

    def _those_that_come(self) -> Ranks:
        """The ranks that plan the next step with this one."""
        ranks = self._settings.ranks
        if ranks.bound or ranks.alone or self._coming is Coming.ALL:
            return ranks
        return ranks if self._coming is Coming.PERHAPS and ranks.meet() else ALONE

    def _with_planners(self, settings: Settings, key: Any) -> Settings:
        """`settings` with those of its ranks whose step is the same."""
        ranks = settings.ranks
        if ranks.bound or ranks.alone:
            return settings
        # Nothing in these steps is a collective: each may follow a plan of its own, and does where
        # its steps are not those of the others.
        state = self._changes, self._budget_bytes is None, self._bucket_bytes
        rows = ranks.gather((key_digest(key), settings.alike(), state), "compare steps")
        return settings if len(set(rows)) == 1 else replace(settings, ranks=ALONE)

    def adopt(self, captured: CapturedStep, plan: Plan, inputs: Any, keywords: Any) -> None:
        """Run steps with inputs like these by `plan`.

        In the place of the plan that was there for such inputs: a schedule may change with the
        stage of training.
        """
        ranks = self._settings.bound_ranks
        if not ranks.alone:
            check_one_plan(plan, captured.workload, ranks)
        self._budget_bytes, self._is_adopted = plan.budget_bytes, True
        self._many_sizes.clear()
        settings = replace(self._settings, ranks=ranks)
        planned = planned_step(captured, plan, store_all_peak(captured), settings)
        planned, difference = self._compared(planned, inputs, keywords, ranks)
        if difference is not None:
            self._accept(planned, difference)
        key = self._full_key(inputs, keywords, "uses a plan")
        self._own_key, self._own_plan = key, None
        self._coming = Coming.NONE
        self._keep(key, Variants()).add(self._numbered(planned))

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
        from .belonging import captured_for

        settings = self._settings
        ranks = settings.ranks

        def belonging() -> tuple[CapturedStep, Settings]:
            bound = replace(settings, ranks=settings.bound_ranks)
            return captured_for(plan, self._model, inputs, keywords, bound)

        captured, found = settings.bound_ranks.together("check the plan", belonging)
        self._settings = replace(found, budget=plan.budget_bytes, ranks=ranks)
        self._changes += 1
        self._captured.clear()  # these were of the settings before
        self.adopt(captured, plan, inputs, keywords)

    def replan(self, budget: int | str) -> None:
        """Forget all plans; steps are planned anew within `budget` when they come.

        Captures and measurements of the shapes seen are kept. If there are several ranks, all call
        it.
        """
        self._changes += 1
        self._coming = Coming.PERHAPS
        self._settings = replace(self._settings, budget=budget)
        self._budget_bytes, self._is_adopted, self._counts_no_more = None, False, False
        self._own_key = self._own_plan = None
        self._planned.clear()
        self._many_sizes.clear()

    def _step_for(
        self,
        key: Any,
        inputs: tuple[Any, ...],
        keywords: Mapping[str, Any],
        tried: tuple[PlannedStep, ...] = (),
        why: str = "",
    ) -> PlannedStep | None:
        """The plan for the present state of the model's Python; ``None`` where the plain step runs.

        Parameters
        ----------
        tried, why
            Plans that this step has left, and the reason.
        """
        variants = self._planned.get(key)
        if variants is None:
            loss, ranks = self._settings.loss, self._settings.bound_ranks
            ranks.together(
                "read the inputs", lambda: check_step_inputs(self._model, loss, inputs, keywords)
            )
            if self._planned and self._shapes == "raise":
                known = next(iter(self._planned))
                raise SchedsimError(
                    f"the step is not as planned: {key_difference(known, key)}",
                    hint="shapes='plan' plans once for each shape; or pad the inputs",
                )
            planned: PlannedStep | None = self._keep(
                key, Variants(), self._plan(key, inputs, keywords, None)
            )
            return planned
        self._planned.move_to_end(key)
        found = variants.fitting(tried, self._common)
        if found is not None or variants.level == "plain":
            return found
        why = self._why_anew(variants, why)
        return self._another(key, variants, inputs, keywords, why)

    def _why_anew(self, variants: Variants, why: str) -> str:
        """`why` no plan fits, or what has changed, here or on another rank."""
        ranks, change = self._settings.bound_ranks, variants.change()
        if ranks.alone:
            return why or str(change)
        own = why or ("" if change is None else str(change))
        rows = zip(ranks.members, ranks.gather(own, "compare steps"), strict=True)
        return own or next((f"on rank {rank}, {its}" for rank, its in rows if its), "other states")

    def _another(
        self,
        key: Any,
        variants: Variants,
        inputs: tuple[Any, ...],
        keywords: Mapping[str, Any],
        why: str,
    ) -> PlannedStep | None:
        """A new plan beside those of `variants`; by blocks, or none, once there were too many."""
        name = type(self._model).__name__
        if variants.num_planned >= MAX_VARIANTS:
            op_by_op = self._settings.level == "auto" and variants.level is None
            if op_by_op and variants.steps and variants.steps[-1].captured.level == "op":
                variants.level, variants.num_planned = "block", 0
                variants.steps.clear()
                line = f"{name} is planned by blocks, as plans op by op do not last: {why}"
                variants.say(line, BlockLevelWarning)
            else:
                variants.give_up(name, f"plans do not last: {why}")
                return None
        elif variants.steps:  # else why was said when the plans were left
            variants.say(f"{name} is planned anew: {why}", ReplannedWarning)
        for step in variants.steps:
            met = step.captured.backward and step.captured.backward.met
            self._backward_autocast = met or self._backward_autocast
        variants.forget_replaced()
        try:
            planned = self._plan(key, inputs, keywords, variants.level)
        except UnsupportedError as error:
            variants.give_up(name, error.message)
            return None
        variants.add(planned)
        return self._settled(variants, planned)

    def _settled(self, variants: Variants, planned: PlannedStep) -> PlannedStep | None:
        """`planned`, unless it is for the state that a first forward sets up."""
        change: Any = planned.change
        ranks = self._settings.bound_ranks
        if not ranks.alone:
            own = None if change is None else str(change)
            rows = [row for row in ranks.gather(own, "compare steps") if row is not None]
            change = own or next(iter(rows), None)
        if change is None:
            return planned
        variants.say(
            f"{type(self._model).__name__}: the first step runs as it is, not within the budget, "
            f"as it sets up what later steps read: {change}",
            PlainStepWarning,
        )
        return None

    def _plan(
        self, key: Any, inputs: tuple[Any, ...], keywords: Mapping[str, Any], level: str | None
    ) -> PlannedStep:
        """A plan whose step is the plain one, as far as `check` asks; if need be at the next level.

        All ranks that plan together come here, and go on with the same level.
        """
        settings = self._settings if level is None else replace(self._settings, level=level)
        if settings.ranks.bound < communicates(self._model):
            raise UnsupportedError(
                f"{type(self._model).__name__} was spread over ranks after it was planned",
                hint="shard it first, and rematerialize it then",
            )
        coming = self._those_that_come()
        settings = replace(settings, ranks=coming)

        def planned_at(settings: Settings) -> tuple[PlannedStep, Ranks]:
            found = self._with_planners(settings, key)
            planned = self._planned_for(key, inputs, keywords, found)
            assert self._budget_bytes is not None
            given = (inputs, keywords)
            return kept_within(self._model, found, planned, self._budget_bytes, given), found.ranks

        with (
            kept_generators(self._model, settings.loss),
            backward_within(self._backward_autocast),
        ):
            budget_bytes = self._budget_bytes
            planned, ranks = coming.together("plan a step", lambda: planned_at(settings))
            planned, difference = self._compared(planned, inputs, keywords, ranks)
            if (
                difference is not None
                and planned.captured.level == "op"
                and settings.level == "auto"
            ):
                by_op, self._budget_bytes = planned, budget_bytes
                try:
                    lower = replace(settings, level="block", compile=False, ranks=ranks)
                    planned = ranks.together(
                        "plan a step", lambda: self._planned_for(key, inputs, keywords, lower)
                    )
                    planned, at_block = self._compared(planned, inputs, keywords, ranks)
                    if at_block is None or not difference.rounding:
                        warnings.warn(
                            f"{type(self._model).__name__} is planned by blocks, as op by op its "
                            f"step is another: {difference}",
                            BlockLevelWarning,
                            stacklevel=4,
                        )
                        difference = at_block
                except (UnsupportedError, InfeasibleBudgetError):
                    if difference is None or not difference.rounding:
                        raise
                    planned, self._budget_bytes = by_op, by_op.plan.budget_bytes
        self._coming = Coming.NONE
        planned = self._numbered(planned)
        return planned if difference is None else self._accept(planned, difference)

    def _numbered(self, planned: PlannedStep) -> PlannedStep:
        self._num_plans += 1
        return replace(planned, number=self._num_plans)

    def _accept(self, planned: PlannedStep, difference: Difference) -> PlannedStep:
        """`planned` with a warning where it rounds otherwise; an error where it is another step."""
        name = type(self._model).__name__
        if not difference.rounding:
            raise UnsupportedError(
                f"the planned step of {name} by {planned.captured.level} is not the plain one: "
                f"{difference}",
                hint="nothing was planned; plan by the other level, or train without",
            )
        line = f"the planned step of {name} is the plain one within rounding: {difference}"
        warnings.warn(line, RoundingWarning, stacklevel=4)
        return planned

    def _compared(
        self,
        planned: PlannedStep,
        inputs: tuple[Any, ...],
        keywords: Mapping[str, Any],
        ranks: Ranks = ALONE,
    ) -> tuple[PlannedStep, Difference | None]:
        """`planned` with how its step compares with the plain one, here and on all of `ranks`."""
        why = why_not_compared(self)
        if why is None:
            note, difference = compare(self._model, self._settings, planned, inputs, keywords)
        else:
            note, difference = f"not compared with the plain step: {why}", None
        if not ranks.alone:
            told = None if difference is None else (difference.what, difference.rounding)
            rows = [row for row in ranks.gather(told, "compare steps") if row is not None]
            if rows and difference is None:
                difference = Difference(f"on another rank, {rows[0][0]}", all(r for _, r in rows))
        return replace(planned, check_note=note), difference

    def _planned_for(
        self,
        key: Any,
        inputs: tuple[Any, ...],
        keywords: Mapping[str, Any],
        settings: Settings,
    ) -> PlannedStep:
        model = self._model
        given = (inputs, keywords)
        if not wanted(settings):
            captured = self._captured_for(key, inputs, keywords, settings)
            if self._bucket_bytes:
                captured = captured.with_added(captured.added_bytes + self._bucket_bytes)
            most = store_all_peak(captured)
            if self._budget_bytes is None:
                self._budget_bytes = resolved_budget(settings, captured, model, given)[0]
            return plan_step(captured, self._budget_bytes, most, settings, given)
        first = None
        extra_bytes = settings.extra_bytes + self._bucket_bytes
        settings = replace(settings, extra_bytes=extra_bytes)
        if self._budget_bytes is None:
            if isinstance(settings.budget, str) and is_share(settings.budget):
                plain = replace(settings, chunk=None, accumulate=None, offload=None)
                first = capture_step(model, inputs, keywords, plain)
            budget_bytes = resolved_budget(settings, first, model, given)[0]
        else:
            budget_bytes = self._budget_bytes
        chosen = choose(model, inputs, keywords, settings, budget_bytes, first)
        self._budget_bytes = budget_bytes
        most = store_all_peak(first if first is not None else chosen.captured)
        return planned_step(chosen.captured, chosen.plan, most, chosen.settings, chosen.ways)

    def _captured_for(
        self,
        key: Any,
        inputs: tuple[Any, ...],
        keywords: Mapping[str, Any],
        settings: Settings,
    ) -> CapturedStep:
        """The step captured, once for inputs like these: another budget takes no new capture."""
        key = (key, settings.ranks.alone, settings.level, self._backward_autocast)
        captured = self._captured.pop(key, None)
        recorded = captured.recorded if captured is not None else None
        if recorded is not None and recorded.questions:
            captured = None  # its answers may be those of other inputs
        lasts = captured is not None and not (captured.guards and captured.guards.change())
        if not settings.ranks.all(lasts, "compare steps") or captured is None:
            captured = capture_step(self._model, inputs, keywords, settings)
        self._captured[key] = captured
        while len(self._captured) > self._max_shapes:
            self._captured.popitem(last=False)
        return captured

    def _keep(self, key: Any, variants: Variants, planned: PlannedStep | None = None) -> Any:
        if self._num_inputs is None:
            self._num_inputs = len(key[0].positional)
        if self._own_key is None:
            self._own_key = key
        self._planned[key] = variants
        while len(self._planned) > self._max_shapes:
            dropped, its = self._planned.popitem(last=False)
            if dropped == self._own_key and its.steps:
                self._own_plan = its.steps[-1].plan
        if planned is None:
            return variants
        variants.add(planned)
        return self._settled(variants, planned)

    def _step(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        with self._settings.ranks.leaving(is_averaged=is_averaged(self)):
            return self._run_step(inputs, keywords)

    def _run_step(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        if not self.training or not torch.is_grad_enabled():
            self._evaluation_begins()
            return self._plain(inputs, keywords)
        self._replan_for_buckets()
        key, why = self._full_key(inputs, keywords), ""
        if key not in self._planned and self._shapes == "plan":
            with self._failing_alike(inputs, keywords), refusing_passes(self):
                many = self._step_of_many(key, inputs, keywords)
            if many is not None:
                return self._last.shaped(many(*inputs, **keywords))
        with self._failing_alike(inputs, keywords):
            self._replan_for_gradients(key, inputs, keywords)
        tried: tuple[PlannedStep, ...] = ()
        while True:
            with self._failing_alike(inputs, keywords):
                with refusing_passes(self):
                    planned = self._step_for(key, inputs, keywords, tried, why)
                if planned is not None and planned.captured.level == "block":
                    refuse_hidden_parameters(self)
                if planned is not None and not self._still_checked(key, planned, inputs, keywords):
                    continue
            if planned is None:
                return self._plain(inputs, keywords)
            try:
                return planned.shaped(planned.module(*inputs, **keywords))
            except OtherAnswer as error:
                tried, why = (*tried, planned), error.message
            except OtherPath as error:
                if not self._settings.bound_ranks.alone:
                    raise  # the other ranks go on with the plan
                variants, name = self._planned[key], type(self._model).__name__
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
            if self._settings.ranks.alone:  # others would miss this rank in the plain step
                with saved_elsewhere([*self._model.parameters(), *self._model.buffers()]):
                    self._plain(inputs, keywords)
            raise

    def _step_of_many(
        self, key: Any, inputs: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> StepWithLoss | None:
        """The step for inputs of many sizes, where more than a few have come."""
        settings = self._settings
        if not are_for_many_sizes(settings) or self._bucket_bytes or self._is_told_kept:
            return None
        known = [(other, v) for other, v in self._planned.items() if v.steps]
        by_blocks = any(step.captured.level != "op" for _, v in known for step in v.steps)
        if by_blocks and not settings.largest:
            return None
        check_step_inputs(self._model, settings.loss, inputs, keywords)
        name = type(self._model).__name__

        def make(open_sizes: list[frozenset[int]]) -> StepWithLoss | None:
            known_bytes = self._budget_bytes
            budget = settings.budget if known_bytes is None else known_bytes
            made = make_step(self._model, settings, budget, inputs, keywords, open_sizes)
            if made is not None and settings.largest:
                self._budget_bytes = made.budget_bytes
            elif made is not None:
                warnings.warn(
                    f"sizes of {name} differ from step to step: one plan is made for all further "
                    "sizes, whose peak is evaluated at each",
                    ReplannedWarning,
                    stacklevel=5,
                )
            elif settings.largest:
                warnings.warn(
                    f"largest= has no effect: no plan for many sizes can be made of {name}, each "
                    "size is planned when it comes",
                    ReplannedWarning,
                    stacklevel=5,
                )
            return made

        forms = [(other[0].leaves, (other[0].spec, other[1:])) for other, _ in known]
        rest = key[0].spec, key[1:]
        at_once = None if settings.largest else forms
        return self._many_sizes.step_for(key[0].leaves, at_once, rest, make)

    def _still_checked(
        self,
        key: Any,
        planned: PlannedStep,
        inputs: tuple[Any, ...],
        keywords: Mapping[str, Any],
    ) -> bool:
        """Whether `planned` still gives the plain step, where every N-th is to be compared."""
        every = self._settings.check
        self._num_steps += 1
        if not isinstance(every, int) or self._num_steps % every:
            return True
        _, difference = self._compared(planned, inputs, keywords)
        if difference is None:
            return True
        variants, name = self._planned[key], type(self._model).__name__
        if difference.rounding:
            line = f"the planned step of {name} is the plain one within rounding: {difference}"
            variants.say(line, RoundingWarning)
            return True
        what = f"step {self._num_steps} by the plan is not the plain one: {difference}"
        auto = self._settings.level == "auto" and planned.captured.level == "op"
        variants.steps.clear()
        variants.num_planned = MAX_VARIANTS
        if auto and variants.level is None:
            variants.level, variants.num_planned = "block", 0
            variants.say(f"{name} is planned by blocks, as {what}", BlockLevelWarning)
        else:
            variants.give_up(name, what)
        return False

    def _replan_for_buckets(self) -> None:
        """Plan anew where this is the first step inside of a wrapper, or the first to accumulate.

        The wrapper is made after the first plan, and is not seen before it calls.
        """
        steps = [step for variants in self._planned.values() for step in variants.steps]
        if self._planned and not steps:
            return  # plain steps, which hold to no plan
        found = averaging(self)
        if found is None:
            return
        settings = self._settings
        # By blocks each gradient goes to its bucket as it is made; by ops, all at the end.
        in_buckets = bool(steps) and self.level == "block" and found.holds_gradients
        keeps = settings.keep_gradients or found.accumulates or in_buckets
        num_bytes = found.bytes_beside(gradients_resident=keeps)
        if num_bytes <= self._bucket_bytes and keeps == settings.keep_gradients:
            return
        if found.accumulates and not settings.keep_gradients:
            name = type(self._model).__name__
            warnings.warn(
                f"{name} is planned anew: its gradients stay for later steps (no_sync)",
                ReplannedWarning,
                stacklevel=4,
            )
        if keeps != settings.keep_gradients:
            self._settings = replace(settings, keep_gradients=True)
            self._captured.clear()
        self._is_told_kept = keeps
        self._bucket_bytes = max(num_bytes, self._bucket_bytes)
        self._own_key = None
        self._planned.clear()
        self._coming = Coming.PERHAPS  # the wrapper's forward is a step of all ranks

    def _replan_for_gradients(
        self, key: Any, inputs: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> None:
        """Plan anew where gradients of an earlier step are still there, as in accumulation.

        The former plan lets gradients appear as they are made: those from before would come to it.
        """
        settings, name = self._settings, type(self._model).__name__
        if settings.keep_gradients or self._counts_no_more or not settings.ranks.alone:
            return  # ranks are told by their wrapper
        if not self._planned or all(p.grad is None for p in self._model.parameters()):
            return
        stay = f"gradients of {name} stay for later steps"
        if self._is_adopted:
            self._counts_no_more = True
            line = "a plan that is applied holds its budget if it was made with keep_gradients=True"
            warnings.warn(f"{stay}: {line}", PlainStepWarning, stacklevel=4)
            return
        planned, captured, own_key = self._planned, self._captured, self._own_key
        self._settings = replace(settings, keep_gradients=True)
        self._planned, self._captured, self._own_key = OrderedDict(), OrderedDict(), None
        try:
            with refusing_passes(self):
                self._step_for(key, inputs, keywords)
        except BaseException as error:
            self._planned, self._captured, self._own_key = planned, captured, own_key
            self._settings = settings
            if not isinstance(error, InfeasibleBudgetError):
                raise
            self._counts_no_more = True
            least = error.plan.min_feasible_bytes if error.plan is not None else None
            line = f", and no plan that counts them fits{f' below {least} bytes' if least else ''}"
            warnings.warn(
                f"{stay}{line}: steps that begin with them may exceed the budget; free them before "
                "the forward (zero_grad), or give more",
                PlainStepWarning,
                stacklevel=4,
            )
        else:
            warnings.warn(
                f"{name} is planned anew: its gradients stay for later steps "
                "(keep_gradients=True plans for that from the start)",
                ReplannedWarning,
                stacklevel=4,
            )

    def _plain(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        loss = self._settings.loss
        if loss is None or len(inputs) != self._num_inputs:
            return self._model(*inputs, **keywords)
        num_extra = count_extra_inputs(self._model, loss, len(inputs))
        return plain_loss(self._model, loss, inputs, keywords, num_extra)

    # -- what was planned ---------------------------------------------------------------------

    @property
    def _last(self) -> PlannedStep:
        for variants in reversed(self._planned.values()):
            if variants.steps:
                return variants.steps[-1]
        raise SchedsimError("nothing is planned yet", hint="call prepare(*inputs), or a step")

    @property
    def plan(self) -> Plan:
        """The plan for the inputs that it was made with, or for those given to `use` since then.

        After `replan` they are those of the next step. Steps of other shapes do not change it:
        theirs are `last_plan` and `plans`.
        """
        variants = self._planned.get(self._own_key)
        if variants is not None and variants.steps:
            return variants.steps[-1].plan
        return self._own_plan or self._last.plan

    @property
    def last_plan(self) -> Plan:
        """The plan for the inputs of the last step."""
        return self._last.plan

    @property
    def plans(self) -> list[Plan]:
        """All plans kept, the last used last."""
        return [step.plan for variants in self._planned.values() for step in variants.steps]

    @property
    def level(self) -> str:
        """``"op"`` or ``"block"``."""
        return self._last.captured.level

    @property
    def budget_bytes(self) -> int:
        """The budget in bytes."""
        self._last  # noqa: B018 - raises where nothing is planned
        assert self._budget_bytes is not None
        return self._budget_bytes

    @property
    def model(self) -> nn.Module:
        """The plain model."""
        model: nn.Module = self._model
        return model

    @property
    def run_counts(self) -> dict[str, int]:
        """Op -> number of runs in the last step."""
        counts: dict[str, int] = self._last.module.run_counts  # type: ignore[assignment]
        return counts

    def counted(self) -> dict[str, int]:
        """Bytes at the predicted peak by what they are; their sum is the peak."""
        return counted(self._last)

    def report(self) -> str:
        """A report for people: what was counted and how, the predicted peak and overhead."""
        return "\n".join([*report_lines(self._last), *self._many_sizes.reports])

    @property
    def ways(self) -> list[Way]:
        """The ways to spend less that were looked at for the last step's inputs, with prices."""
        return list(self._last.ways)

    def to_dict(self) -> dict[str, Any]:
        """The content of `report`, for JSON."""
        return report_dict(self._last)

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
        made = Rematerialized(
            model, self._settings, shapes=self._shapes, max_shapes=self._max_shapes
        )
        made._budget_bytes, made._num_inputs = self._budget_bytes, self._num_inputs
        made._coming = Coming.PERHAPS  # one rank alone may make a copy
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
        if module._settings.loss is None:
            self.__signature__ = inspect.signature(module._model.forward)

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        return self._step(inputs, keywords)
