"""Recomputation for the stages of one partition: choices by model, then checked by simulation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from schedsim.pipelines import Order, Pipeline, PipelineRun, StagePlan, most_in_flight, run_pipeline

from ._device_choices import (
    HeldStage,
    StageChoice,
    all_mixed,
    joint_choice,
    least_choice,
    mixed_choice,
    uniform_choices,
)
from ._makespan import StageTimes, weight_times
from .stage_frontier import StageFrontiers

MOST_ROUNDS = 8
"""Simulations in which a device's room is corrected by what came out."""


MOST_CHOICES, MOST_MIXED = 2000, 5000
"""All choices of points for the stages are looked at where there are no more; all with two points a
stage in turn, too."""

MOST_ACTIONS = 60_000
"""Where devices have several stages, all choices are looked at only if they have no more actions to
simulate: the sizes known beforehand refuse few of them."""

NUM_RUNGS, NUM_STEPS, FEW_STEPS = 16, 24, 8
"""The ladder of budgets that choices are made for has rungs, whose runs are simulated and
corrected, and steps from one rung to the next, whose runs are simulated where they promise to be
faster; few steps for one partition among many."""

ROUNDING = 1e-9
"""The model and the simulator add the same times in another order; relative to the step time they
differ by less. (By 1.2e-12 over the 12,000 runs of 8 devices with 12 layers each.)"""

UNLIMITED_BYTES = 2**60
"""More room than the choices of any device take."""


_Points = tuple[tuple[int, ...], ...]


def _points(choices: Sequence[StageChoice]) -> _Points:
    return tuple(choice.points for choice in choices)


def _fastest(runs: Sequence[PipelineRun | None], budget_bytes: int) -> PipelineRun | None:
    """The first of the fastest of those `runs` that fit."""
    fits = [run for run in runs if run is not None and run.peak_bytes <= budget_bytes]
    return min(fits, key=lambda run: run.makespan_s, default=None)


class OrderFacts:
    """The facts about an order that the choices of every partition use.

    Attributes
    ----------
    times : StageTimes
    in_flight : tuple of int
        The most micro-batches of each stage in flight.
    together : tuple of tuples of dict
        For each device the most of its stages at one time; see `most_in_flight`.
    """

    def __init__(self, pipeline: Pipeline, order: Order) -> None:
        self.order = order
        self.times = StageTimes(pipeline, order)
        self.together = counts = most_in_flight(order)
        self.in_flight = tuple(
            max(count.get(v, 0) for count in counts[pipeline.device_of(v)])
            for v in range(pipeline.num_stages)
        )


class Selection:
    """One partition of a pipeline under an order, with the fronts of its stages.

    Parameters
    ----------
    mix
        Whether the micro-batches of a stage may differ.
    """

    def __init__(
        self, pipeline: Pipeline, facts: OrderFacts, fronts: StageFrontiers, *, mix: bool
    ) -> None:
        self.pipeline, self.order, self.fronts, self.mix = pipeline, facts.order, fronts, mix
        self.times, self.together = facts.times, facts.together
        sizes = pipeline.chain.activation_bytes().tolist()
        self.stages: list[HeldStage] = []
        for v, most in enumerate(facts.in_flight):
            lo, hi = pipeline.cuts[v], pipeline.cuts[v + 1]
            self.stages.append(HeldStage(fronts.front(lo, hi), most, sizes[lo]))
        self._fixed: list[list[StagePlan]] = []  # of each stage, what `_wide` adds to its front
        self.message_s = self.times.message_times(pipeline)
        work = [pipeline.stage_work_s(v) for v in range(pipeline.num_stages)]
        self.forward_s = [forward for forward, _ in work]
        self.weights_s = weight_times(pipeline)
        self.loss_s = [0.0] * pipeline.num_stages
        self.loss_s[-1] = pipeline.chain.loss_s
        self._runs: dict[_Points, PipelineRun] = {}
        self._step_s: dict[_Points, float] = {}
        self._chosen: dict[tuple[int, ...], list[StageChoice] | None] = {}
        self._descended: dict[tuple[_Points, ...], list[StageChoice]] = {}

    @property
    def can_fit(self) -> bool:
        """Whether every stage by itself has a point within the fronts' cap."""
        return all(stage.front.num_points for stage in self.stages)

    @cached_property
    def _wide(self) -> list[HeldStage]:
        """The stages with the fixed plans behind the points of their fronts."""
        found = []
        for v, stage in enumerate(self.stages):
            front, plans = self.fronts.with_usual(*self.pipeline.cuts[v : v + 2])
            self._fixed.append(plans)
            found.append(replace(stage, front=front))
        return found

    def makespan_s(self, choices: Sequence[StageChoice]) -> float:
        """Step time by times of whole stages, in seconds."""
        points = _points(choices)
        if points not in self._step_s:
            self._step_s[points] = self._evaluated(choices)
        return self._step_s[points]

    def _evaluated(self, choices: Sequence[StageChoice]) -> float:
        early, late = [], []
        for v, choice in enumerate(choices):
            pairs = list(zip(choice.time_s, choice.late_s, strict=True))
            early.append([time - self.forward_s[v] - after for time, after in pairs])
            extra = self.loss_s[v] - float(self.weights_s[v])
            late.append([after + extra for _, after in pairs])
        return self.times.makespan_s(
            self.forward_s, early, late, self.weights_s.tolist(), self.message_s
        )

    def room(self, budget_bytes: int) -> list[int]:
        """Bytes of each device besides its model state."""
        return [budget_bytes - static for static in self.pipeline.device_static_bytes]

    def choose(self, room_bytes: Sequence[int]) -> list[StageChoice] | None:
        """The best choices found within each device's room; ``None`` where a stage has none."""
        key = tuple(room_bytes)
        if key not in self._chosen:
            self._chosen[key] = self._choose(room_bytes)
        return self._chosen[key]

    def _choose(self, room_bytes: Sequence[int]) -> list[StageChoice] | None:
        if self.pipeline.num_chunks > 1:
            return self._choose_jointly(room_bytes)
        options = []
        for v, stage in enumerate(self.stages):
            found = uniform_choices(stage, room_bytes[v])
            if not found:
                return None
            mixed = mixed_choice(stage, room_bytes[v]) if self.mix else None
            if mixed is not None and mixed.mean_s < found[0].mean_s:
                found.append(mixed)
            options.append(found)
        return self._descend(options)

    def _descend(self, options: list[list[StageChoice]]) -> list[StageChoice]:
        """From the fastest of each stage, one stage at a time, while the step gets shorter."""
        given = tuple(_points(found) for found in options)
        if given in self._descended:  # by a neighbouring budget
            return self._descended[given]
        chosen = [min(found, key=lambda choice: choice.mean_s) for found in options]
        best = self.makespan_s(chosen)
        better = True
        while better:
            better = False
            for v, found in enumerate(options):
                for choice in found:
                    if choice is chosen[v]:
                        continue
                    tried = [*chosen[:v], choice, *chosen[v + 1 :]]
                    makespan = self.makespan_s(tried)
                    if makespan < best * (1 - 1e-12):
                        chosen, best, better = tried, makespan, True
        self._descended[given] = chosen
        return chosen

    def _choose_jointly(self, room_bytes: Sequence[int]) -> list[StageChoice] | None:
        num = self.pipeline.num_devices
        chosen: dict[int, StageChoice] = {}
        for k in range(num):
            mine = list(range(k, self.pipeline.num_stages, num))
            found = joint_choice([self.stages[v] for v in mine], room_bytes[k])
            if found is None:
                return None
            chosen.update(zip(mine, found, strict=True))
        return [chosen[v] for v in range(self.pipeline.num_stages)]

    def least(self) -> list[StageChoice]:
        """The choices that need the least memory."""
        return [least_choice(stage) for stage in self.stages]

    def run(self, choices: Sequence[StageChoice]) -> PipelineRun:
        """`choices`, simulated."""
        points = _points(choices)
        if points not in self._runs:
            self._runs[points] = run_pipeline(self.pipeline, self.order, self.plans(choices))
        return self._runs[points]

    def plans(self, choices: Sequence[StageChoice]) -> list[StagePlan | list[StagePlan]]:
        """The runs behind `choices`."""
        found: list[StagePlan | list[StagePlan]] = []
        for v, choice in enumerate(choices):
            lo, hi = self.pipeline.cuts[v], self.pipeline.cuts[v + 1]
            num = self.stages[v].front.num_points
            plans = [
                self.fronts.plan(lo, hi, p) if p < num else self._fixed[v][p - num]
                for p in choice.points
            ]
            found.append(plans if len(plans) > 1 else plans[0])
        return found

    def best(
        self,
        budget_bytes: int,
        bound_s: Callable[[int], float] | None = None,
        known: PipelineRun | None = None,
        *,
        thorough: bool = True,
    ) -> PipelineRun | None:
        """The fastest run found within the budget; never slower than that of a smaller budget.

        All choices are looked at where they are few. Otherwise the runs come from a ladder of
        budgets that depends on the pipeline alone: each budget looks at the rungs up to itself, so
        it sees every run that a smaller budget sees, or knows one that is as fast. Of these runs
        the fastest that fits is returned. (What is chosen for a device depends on its room by a
        model, so that a smaller room may give a faster run, or the only one.)

        Parameters
        ----------
        bound_s
            No run within so many bytes is faster; ends the ladder.
        known
            A run within the budget; no slower one is looked for.
        thorough
            False for one partition among many: fewer steps from rung to rung, and no simulation
            where the model promises nothing.
        """
        num_steps = NUM_STEPS if thorough else FEW_STEPS
        least, least_bytes, best = self.least(), self.least_bytes, known
        if thorough:
            least_bytes = self.run(least).peak_bytes
        if known is None or self.makespan_s(least) * (1 - ROUNDING) < known.makespan_s:
            best = _fastest([known, self.run(least)], budget_bytes)
        best = self._unlimited(budget_bytes, self.every_choice(budget_bytes, best))
        if thorough:
            best = self._with_fixed(budget_bytes, best)
        rungs = self.ladder(least_bytes, num_steps)
        top = budget_bytes
        for foot in range(len(rungs) - 1, -1, -num_steps):
            if rungs[foot] <= budget_bytes:
                if best is not None and bound_s is not None and bound_s(top) >= best.makespan_s:
                    break  # nothing below is faster
                best = self._climbed(best, rungs[foot : foot + num_steps], top)
            # A run of a rung below that takes more than this rung is not counted there.
            top = min(top, rungs[foot])
        return best

    def _unlimited(self, budget_bytes: int, best: PipelineRun | None) -> PipelineRun | None:
        """`best`, or the run of what is chosen where memory plays no part, if that fits.

        The ladder ends below that run: its highest rung counts what is kept, and no workspaces.
        """
        choices = self.choose([UNLIMITED_BYTES] * self.pipeline.num_devices)
        if choices is None:
            return best
        room = self.room(budget_bytes)
        if any(self._size(choices, k) > size for k, size in enumerate(room)):
            return best
        if best is not None and self.makespan_s(choices) * (1 - ROUNDING) >= best.makespan_s:
            return best
        return _fastest([best, self.run(choices)], budget_bytes)

    def _with_fixed(self, budget_bytes: int, best: PipelineRun | None) -> PipelineRun | None:
        """`best`, or the fastest run with fixed plans, of all stages or of one, the others least.

        Messages wait on a device that is slower than those beside it: what fits may be a slower
        plan of a neighbour, which the model of sizes knows nothing of.
        """
        for chosen in self._with_one_fixed():
            below = np.inf if best is None else best.makespan_s
            if self.makespan_s(chosen) * (1 - ROUNDING) < below and self._may_fit(
                chosen, budget_bytes
            ):
                best = _fastest([best, self.run(chosen)], budget_bytes)
        return best

    def _with_one_fixed(self) -> list[list[StageChoice]]:
        """Fixed plans that recompute most of all stages, and of each stage beside the least."""
        least = self.least()
        fixed = [stage.choice((stage.front.num_points - 1,)) for stage in self._wide]
        one = [[*least[:v], fixed[v], *least[v + 1 :]] for v in range(len(least))]
        return [fixed, *one]

    def least_peak_bytes(self) -> int:
        """The least simulated peak of the choices that need least, some of them fixed plans."""
        every = [self.least(), *self._with_one_fixed()]
        return min(self.run(choices).peak_bytes for choices in every)

    def _may_fit(self, choices: Sequence[StageChoice], budget_bytes: int) -> bool:
        """Whether the choices do not surely exceed the budget."""
        room = self.room(budget_bytes)
        return all(self._least_size(choices, k) <= size for k, size in enumerate(room))

    def _climbed(
        self, best: PipelineRun | None, rungs: Sequence[int], most_bytes: int
    ) -> PipelineRun | None:
        """`best`, or the fastest run within `most_bytes` of a rung and of the steps above it.

        A run counts if it takes no less time than the model promised for its step. So no run is
        missed where a promise is too slow and nothing is simulated, whatever the budget is.
        """
        steps = [rung for rung in rungs if rung <= most_bytes]
        below = np.inf if best is None else best.makespan_s
        room = {rung: self.room(rung) for rung in steps}
        if all(self._promised_s(room[rung]) >= below for rung in reversed(steps)):
            return best
        tried, extra = self.near(steps[0])
        for rung in steps:
            promised_s = self._promised_s(room[rung])
            if rung != steps[0]:
                less = [size - more for size, more in zip(room[rung], extra, strict=True)]
                promised_s = max(promised_s, self._promised_s(less))
                if best is not None and promised_s >= best.makespan_s:
                    continue
                tried = self.near(rung)[0]
            found = _fastest([run for run in tried if run.makespan_s >= promised_s], most_bytes)
            if found is not None and (best is None or found.makespan_s < best.makespan_s):
                best = found
        return best

    def promised_s(self, budget_bytes: int) -> float:
        """Step time by the model of what is chosen within the budget; infinite if nothing is."""
        choices = self.choose(self.room(budget_bytes)) if self.can_fit else None
        return np.inf if choices is None else self.makespan_s(choices)

    def _promised_s(self, room_bytes: Sequence[int]) -> float:
        """Step time by the model of what is chosen, less what rounding may add; 0 if unknown."""
        choices = self.choose(room_bytes)
        return 0.0 if choices is None else self.makespan_s(choices) * (1 - ROUNDING)

    @property
    def least_bytes(self) -> int:
        """Bytes that the device that needs most takes at least, with the choices of the least."""
        least, static = self.least(), self.pipeline.device_static_bytes
        return max(self._least_size(least, k) + size for k, size in enumerate(static))

    def ladder(self, least_bytes: int, num_steps: int) -> list[int]:
        """Budgets from the least up to that of keeping all, ascending; every `num_steps`-th is
        a rung whose runs are simulated and corrected, the others lie between."""
        most = [0] * self.pipeline.num_devices
        for v, stage in enumerate(self.stages):
            layers = self.pipeline.chain.stages[self.pipeline.cuts[v] : self.pipeline.cuts[v + 1]]
            kept = stage.input_bytes + sum(layer.saved_bytes for layer in layers)
            most[self.pipeline.device_of(v)] += stage.in_flight * kept
        static = self.pipeline.device_static_bytes
        most_bytes = max(size + more for size, more in zip(static, most, strict=True))
        num = NUM_RUNGS * num_steps + 1
        return [int(step) for step in np.linspace(least_bytes, max(least_bytes, most_bytes), num)]

    def every_choice(self, budget_bytes: int, best: PipelineRun | None) -> PipelineRun | None:
        """`best`, or where they are few the fastest of all runs with one point a stage.

        Where there are few with two points a stage in turn, too, the fastest of these.
        """
        stages = next((some for some in (self._wide, self.stages) if self._are_few(some)), None)
        if stages is None:
            return best
        every = [[stage.choice((p,)) for p in range(stage.front.num_points)] for stage in stages]
        # One device's stages are chosen for together, without mixing.
        if self.mix and self.pipeline.num_chunks == 1:
            mixed = [all_mixed(stage) for stage in self.stages]
            sizes = [len(one) + len(two) for one, two in zip(every, mixed, strict=True)]
            if math.prod(sizes) <= MOST_MIXED:
                every = [[*one, *two] for one, two in zip(every, mixed, strict=True)]
        # The model counts no more than there is, so that what it refuses does not fit; and no
        # device works for less than its stages take.
        below = np.inf if best is None else best.makespan_s
        small = [
            chosen
            for chosen in itertools.product(*every)
            if self._work_s(chosen) * (1 - ROUNDING) < below and self._may_fit(chosen, budget_bytes)
        ]
        for chosen in sorted(small, key=self.makespan_s):
            if self.makespan_s(chosen) * (1 - ROUNDING) >= below:
                break
            run = self.run(chosen)
            if run.peak_bytes <= budget_bytes:
                return _fastest([best, run], budget_bytes)
        return best

    def _are_few(self, stages: Sequence[HeldStage]) -> bool:
        """Whether all choices of one point a stage may be looked at."""
        num = math.prod(stage.front.num_points for stage in stages)
        num_actions = num * sum(map(len, self.order))
        several = self.pipeline.num_chunks > 1
        return 0 < num <= MOST_CHOICES and not (several and num_actions > MOST_ACTIONS)

    def _work_s(self, choices: Sequence[StageChoice]) -> float:
        """Seconds that the busiest stage works for all micro-batches."""
        num = self.pipeline.num_micro_batches
        most = 0.0
        for choice in choices:
            rounds, left = divmod(num, len(choice.time_s))
            most = max(most, rounds * sum(choice.time_s) + sum(choice.time_s[:left]))
        return most

    def within(self, budget_bytes: int) -> PipelineRun | None:
        """The fastest run found whose simulated peaks stay within the budget on all devices."""
        return _fastest(self.near(budget_bytes)[0], budget_bytes)

    def near(self, budget_bytes: int) -> tuple[list[PipelineRun], list[int]]:
        """Runs tried for a budget, some of them over it, and what the model leaves out.

        The model of a device leaves bytes out, above all those of messages that wait in its memory:
        the simulated peak is higher by so much. The device is then chosen for again with so much
        less room. So many bytes of each device come second.
        """
        cap = self.room(budget_bytes)
        extra = [0] * len(cap)
        found: dict[_Points, PipelineRun] = {}
        for _ in range(MOST_ROUNDS):
            room = [size - more for size, more in zip(cap, extra, strict=True)]
            choices = self.choose(room) or self.least()
            key = _points(choices)
            if key in found:
                break
            run = found[key] = self.run(choices)
            for k, use in enumerate(run.devices):
                more = use.peak_bytes - use.static_bytes - self._size(choices, k)
                extra[k] = max(extra[k], more) if use.peak_bytes > budget_bytes else more
        return list(found.values()), extra

    def _least_size(self, choices: Sequence[StageChoice], device: int) -> int:
        """Bytes that the choices of a device's stages surely take.

        Several stages of a device do not have their most micro-batches in flight at one time.
        """
        if self.pipeline.num_chunks == 1:
            return self._size(choices, device)
        mine = range(device, self.pipeline.num_stages, self.pipeline.num_devices)
        stages = self._wide
        held = {v: stages[v].held_by(choices[v].points[0]) for v in mine}
        one = max(held[v] + stages[v].work_of(choices[v].points[0]) for v in mine)
        return max(one, *(sum(n * held[v] for v, n in at.items()) for at in self.together[device]))

    def _size(self, choices: Sequence[StageChoice], device: int) -> int:
        """Bytes that the choices of a device's stages should take, without messages that wait."""
        num = self.pipeline.num_devices
        mine = range(device, self.pipeline.num_stages, num)
        held = 0
        work = 0
        for v in mine:
            stage, choice = self._wide[v], choices[v]
            own = max(stage.work_of(p) for p in choice.points)
            held += choice.size_bytes - own
            work = max(work, own)
        return held + work
