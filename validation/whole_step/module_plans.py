"""The plans of one model: a plan for each kind of its steps, made when such a step comes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from schedsim.errors import SchedsimError, UnsupportedError
from schedsim.plans.plan import Plan

from ..autocasts import Autocast
from ..block_level.scheduled_blocks import ScheduledBlocks
from ..guards.plan_variants import (
    MAX_VARIANTS,
    PlainStepWarning,
    ReplannedWarning,
    RoundingWarning,
    Variants,
)
from ..ranks.members import is_spread
from ..ranks.one_plan import check_one_plan
from ..ranks.step_words import StepWord, agreed
from ..user_warnings import warn_user
from .captured_step import CapturedStep
from .plan_maker import Coming, PlanMaker
from .step_capture import BlockLevelWarning
from .step_inputs import check_step_inputs
from .step_key import key_difference, key_digest, step_key
from .step_planning import PlannedStep, planned_step, store_all_peak
from .step_settings import Settings
from .varying_steps import ManySizes, StepWithLoss, are_for_many_sizes, make_step

SHAPES = ("plan", "raise")


class ModulePlans:
    """Makes, checks and keeps the plans of the steps of a model.

    Parameters
    ----------
    outer
        The module that runs the steps.
    shapes, max_shapes
        What to do with steps of other shapes, and the number of shapes whose plans are kept.

    Attributes
    ----------
    maker
        Makes the plans.
    planned
        Key of a step -> its plans, the last used last.
    own_key
        Of the inputs that the first plan is for, or those given to `use` since then.
    num_inputs
        Number of inputs of a step, those of the loss included.
    is_told_kept
        Whether the caller or a wrapper has said that gradients stay, and no step has shown it.
    is_adopted
        Whether plans are ones that the caller has given.
    counts_no_more
        Whether it was said that gradients which stay are not counted.
    told_states
        Whether it was said that states of optimizers are not counted.
    """

    def __init__(
        self, outer: nn.Module, model: nn.Module, settings: Settings, shapes: str, max_shapes: int
    ) -> None:
        if shapes not in SHAPES:
            raise SchedsimError(f"shapes={shapes!r} is unknown", hint="'plan' or 'raise'")
        if max_shapes < 1:
            raise SchedsimError(f"max_shapes={max_shapes} keeps no plan", hint="give at least 1")
        self.maker = PlanMaker(outer, model, settings, max_shapes)
        self.shapes = shapes
        self.num_inputs: int | None = None
        self.planned: OrderedDict[Any, Variants] = OrderedDict()
        self.own_key: Any = None
        self._own_plan: Plan | None = None  # for these, once its step is no longer kept
        self.many_sizes = ManySizes()
        self.is_adopted = self.counts_no_more = self.told_states = False
        self.is_told_kept = settings.keep_gradients
        self._num_steps = 0
        self._common: frozenset[int] | None = None  # numbers of the plans that fit on all ranks
        self._last_form: tuple[Any, str] | None = None

    @property
    def settings(self) -> Settings:
        """How steps are planned."""
        return self.maker.settings

    @property
    def model(self) -> nn.Module:
        """The plain model."""
        return self.maker.model

    def full_key(
        self, inputs: tuple[Any, ...], keywords: Mapping[str, Any], does: str = "runs a step"
    ) -> Any:
        """The values that a plan depends on, here and on the ranks that follow the same plan.

        These ranks tell each other what they do, and which plans fit, so that a rank with nothing
        new learns here that another one needs a plan.
        """
        ranks = self.settings.bound_ranks
        if ranks.alone:
            return step_key(self.model, inputs, keywords)
        key: Any = None

        def word() -> StepWord:
            nonlocal key
            if does == "runs a step":
                self._check_blocks(inputs, keywords)
            key = step_key(self.model, inputs, keywords)
            form = self._form_of(key)
            fitting = {
                full[-1]: tuple(step.number for step in variants.steps if step.change is None)
                for full, variants in self.planned.items()
                if full[-1][ranks.place] == form
            }
            return StepWord(does, form, str(Autocast.now()), self.maker.changes, fitting)

        found = agreed(ranks.gather_from("start a step", word), ranks.members)
        self._common = found.numbers
        return (*key, found.forms)

    def _check_blocks(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        """Refuse here what a step by blocks refuses: later, other ranks would be in collectives."""
        steps = (step for variants in self.planned.values() for step in variants.steps)
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

    def evaluation_begins(self) -> None:
        """Fail on all ranks where another one trains, if evaluating gathers parameters too."""
        ranks = self.settings.bound_ranks
        if not ranks.alone and is_spread(self.model):
            words = ranks.gather(StepWord("evaluates"), "start a step")
            agreed(words, ranks.members)

    def adopt(self, captured: CapturedStep, plan: Plan, inputs: Any, keywords: Any) -> None:
        """Run steps with inputs like these by `plan`.

        In the place of the plan that was there for such inputs: a schedule may change with the
        stage of training.
        """
        ranks = self.settings.bound_ranks
        if not ranks.alone:
            check_one_plan(plan, captured.workload, ranks)
        self.maker.budget_bytes, self.is_adopted = plan.budget_bytes, True
        self.many_sizes.clear()
        settings = replace(self.settings, ranks=ranks)
        planned = planned_step(captured, plan, store_all_peak(captured), settings)
        planned, difference = self.maker.compared(planned, inputs, keywords, ranks)
        if difference is not None:
            self.maker.accept(planned, difference)
        key = self.full_key(inputs, keywords, "uses a plan")
        self.own_key, self._own_plan = key, None
        self.maker.coming = Coming.NONE
        self._keep(key, Variants()).add(self.maker.numbered(planned))

    def use(self, plan: Plan, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        """Run steps with inputs like these by `plan` from now on.

        Raises
        ------
        SchedsimError
            The plan is of another step; the message names what differs.
        """
        from .belonging import captured_for

        settings = self.settings
        ranks = settings.ranks

        def belonging() -> tuple[CapturedStep, Settings]:
            bound = replace(settings, ranks=settings.bound_ranks)
            return captured_for(plan, self.model, inputs, keywords, bound)

        captured, found = settings.bound_ranks.together("check the plan", belonging)
        self.maker.settings = replace(found, budget=plan.budget_bytes, ranks=ranks)
        self.maker.changes += 1
        self.maker.captured.clear()  # these were of the settings before
        self.adopt(captured, plan, inputs, keywords)

    def replan(self, budget: int | str) -> None:
        """Forget all plans; steps are planned anew within `budget` when they come."""
        self.maker.changes += 1
        self.maker.coming = Coming.PERHAPS
        self.maker.settings = replace(self.settings, budget=budget)
        self.maker.budget_bytes, self.is_adopted, self.counts_no_more = None, False, False
        self.own_key = self._own_plan = None
        self.planned.clear()
        self.many_sizes.clear()

    def step_for(
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
        variants = self.planned.get(key)
        if variants is None:
            loss, ranks = self.settings.loss, self.settings.bound_ranks
            ranks.together(
                "read the inputs",
                lambda: check_step_inputs(self.model, loss, inputs, keywords),
            )
            if self.planned and self.shapes == "raise":
                known = next(iter(self.planned))
                raise SchedsimError(
                    f"the step is not as planned: {key_difference(known, key)}",
                    hint="shapes='plan' plans once for each shape; or pad the inputs",
                )
            planned: PlannedStep | None = self._keep(
                key, Variants(), self.maker.plan(key, inputs, keywords, None)
            )
            return planned
        self.planned.move_to_end(key)
        found = variants.fitting(tried, self._common)
        if found is not None or variants.level == "plain":
            return found
        why = self._why_anew(variants, why)
        return self._another(key, variants, inputs, keywords, why)

    def _why_anew(self, variants: Variants, why: str) -> str:
        """`why` no plan fits, or what has changed, here or on another rank."""
        ranks, change = self.settings.bound_ranks, variants.change()
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
        name = type(self.model).__name__
        if variants.num_planned >= MAX_VARIANTS:
            op_by_op = self.settings.level == "auto" and variants.level is None
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
            self.maker.backward_autocast = met or self.maker.backward_autocast
        variants.forget_replaced()
        try:
            planned = self.maker.plan(key, inputs, keywords, variants.level)
        except UnsupportedError as error:
            variants.give_up(name, error.message)
            return None
        variants.add(planned)
        return self._settled(variants, planned)

    def _settled(self, variants: Variants, planned: PlannedStep) -> PlannedStep | None:
        """`planned`, unless it is for the state that a first forward sets up."""
        change: Any = planned.change
        ranks = self.settings.bound_ranks
        if not ranks.alone:
            own = None if change is None else str(change)
            rows = [row for row in ranks.gather(own, "compare steps") if row is not None]
            change = own or next(iter(rows), None)
        if change is None:
            return planned
        variants.say(
            f"{type(self.model).__name__}: the first step runs as it is, not within the budget, "
            f"as it sets up what later steps read: {change}",
            PlainStepWarning,
        )
        return None

    def _keep(self, key: Any, variants: Variants, planned: PlannedStep | None = None) -> Any:
        if self.num_inputs is None:
            self.num_inputs = len(key[0].positional)
        if self.own_key is None:
            self.own_key = key
        self.planned[key] = variants
        while len(self.planned) > self.maker.max_shapes:
            dropped, its = self.planned.popitem(last=False)
            if dropped == self.own_key and its.steps:
                self._own_plan = its.steps[-1].plan
        if planned is None:
            return variants
        variants.add(planned)
        return self._settled(variants, planned)

    def step_of_many(
        self, key: Any, inputs: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> StepWithLoss | None:
        """The step for inputs of many sizes, where more than a few have come."""
        settings = self.settings
        if not are_for_many_sizes(settings) or self.maker.bucket_bytes or self.is_told_kept:
            return None
        known = [(other, v) for other, v in self.planned.items() if v.steps]
        by_blocks = any(step.captured.level != "op" for _, v in known for step in v.steps)
        if by_blocks and not settings.largest:
            return None
        check_step_inputs(self.model, settings.loss, inputs, keywords)
        name = type(self.model).__name__

        def make(open_sizes: list[frozenset[int]]) -> StepWithLoss | None:
            known_bytes = self.maker.budget_bytes
            budget = settings.budget if known_bytes is None else known_bytes
            made = make_step(self.model, settings, budget, inputs, keywords, open_sizes)
            if made is not None and settings.largest:
                self.maker.budget_bytes = made.budget_bytes
            elif made is not None:
                warn_user(
                    f"sizes of {name} differ from step to step: one plan is made for all further "
                    "sizes, whose peak is evaluated at each",
                    ReplannedWarning,
                )
            elif settings.largest:
                warn_user(
                    f"largest= has no effect: no plan for many sizes can be made of {name}, each "
                    "size is planned when it comes",
                    ReplannedWarning,
                )
            return made

        forms = [(other[0].leaves, (other[0].spec, other[1:])) for other, _ in known]
        rest = key[0].spec, key[1:]
        at_once = None if settings.largest else forms
        return self.many_sizes.step_for(key[0].leaves, at_once, rest, make)

    def still_checked(
        self,
        key: Any,
        planned: PlannedStep,
        inputs: tuple[Any, ...],
        keywords: Mapping[str, Any],
    ) -> bool:
        """Whether `planned` still gives the plain step, where every N-th is to be compared."""
        every = self.settings.check
        self._num_steps += 1
        if not isinstance(every, int) or self._num_steps % every:
            return True
        _, difference = self.maker.compared(planned, inputs, keywords)
        if difference is None:
            return True
        variants, name = self.planned[key], type(self.model).__name__
        if difference.rounding:
            line = f"the planned step of {name} is the plain one within rounding: {difference}"
            variants.say(line, RoundingWarning)
            return True
        what = f"step {self._num_steps} by the plan is not the plain one: {difference}"
        auto = self.settings.level == "auto" and planned.captured.level == "op"
        variants.steps.clear()
        variants.num_planned = MAX_VARIANTS
        if auto and variants.level is None:
            variants.level, variants.num_planned = "block", 0
            variants.say(f"{name} is planned by blocks, as {what}", BlockLevelWarning)
        else:
            variants.give_up(name, what)
        return False

    @property
    def last(self) -> PlannedStep:
        """The plan of the last step, with the module that runs it."""
        for variants in reversed(self.planned.values()):
            if variants.steps:
                return variants.steps[-1]
        raise SchedsimError("nothing is planned yet", hint="call prepare(*inputs), or a step")

    @property
    def plan(self) -> Plan:
        """The plan for the inputs that it was made with, or for those given to `use` since then.

        After `replan` they are those of the next step. Steps of other shapes do not change it:
        theirs are `last_plan` and `plans`.
        """
        variants = self.planned.get(self.own_key)
        if variants is not None and variants.steps:
            return variants.steps[-1].plan
        return self._own_plan or self.last.plan
