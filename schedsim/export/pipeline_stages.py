"""Export of a pipeline: the layers that each stage recomputes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UnsupportedError
from ..pipelines.run import PipelineRun, run_pipeline
from ..pipelines.sequence import stage_plan_of
from ..pipelines.stage_plans import StagePlan
from . import stage_code, to_torchtitan
from .segments import layer_range, layers_of

STAGE_TARGETS = ("torchtitan", "megatron", "torch")
SUFFIX = ".py"
Layers = tuple[tuple[int, ...], ...]
"""For each stage some of its layers, counted from the stage's first."""


@dataclass(frozen=True)
class ExportedStages:
    """The recomputation of a pipeline, exported to a target.

    Attributes
    ----------
    target, text
        As in `Exported`.
    layers : tuple of tuple of int
        For each stage the layers that run again, counted from the first layer of the stage.
    run : PipelineRun
        The simulation of what the target runs.
    alike : PipelineRun
        The simulation of the best single number of layers for all stages. Megatron's own arguments
        can express no more than this.
    plan_s, budget_bytes
        The plan's step time, and its budget of each device.
    """

    target: str
    text: str
    layers: Layers
    run: PipelineRun
    alike: PipelineRun
    plan_s: float
    budget_bytes: int

    @property
    def says(self) -> str:
        """How many layers of each stage run again, in words."""
        counts = ", ".join(str(len(stage)) for stage in self.layers)
        return f"layers that run again, by stage: {counts}"

    @property
    def fits(self) -> bool:
        """Whether every device is within the budget."""
        return self.run.peak_bytes <= self.budget_bytes

    @property
    def regret(self) -> float:
        """Extra step time relative to the plan's."""
        return self.run.makespan_s / self.plan_s - 1.0 if self.plan_s else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The export as a JSON document, ``schedsim.stages-export/1``."""
        return {
            "schema": "schedsim.stages-export/1",
            "target": self.target,
            "says": self.says,
            "budget_bytes": self.budget_bytes,
            "peak_bytes": self.run.peak_bytes,
            "makespan_s": self.run.makespan_s,
            "alike": {
                "peak_bytes": self.alike.peak_bytes,
                "makespan_s": self.alike.makespan_s,
            },
            "plan_s": self.plan_s,
            "fits": self.fits,
            "regret": self.regret,
            "layers": [list(stage) for stage in self.layers],
            "text": self.text,
        }


def export_stages(planned: PipelineRun, budget_bytes: int, to: str) -> ExportedStages:
    """`planned` for the target `to`: the fastest recomputation that it can express in the budget.

    torchtitan recomputes any layers of a stage, given by their numbers in the whole model. The
    module written for torch recomputes any layers too, given by their numbers in the stage.
    Megatron-LM recomputes the first layers of each stage (``--recompute-method block``); its
    arguments have one number of layers for all stages, so the exported function sets a number for
    each rank of the pipeline. Every target runs a layer again right before the layer's own
    backward, in all micro-batches alike.

    Parameters
    ----------
    budget_bytes
        Budget of each device.

    Raises
    ------
    UnsupportedError
        Another target, or a chain without layers.

    Notes
    -----
    Simulates the pipeline once for each candidate; the number of candidates is the number of
    layers in the longest stage, plus four.
    """
    if to not in STAGE_TARGETS:
        raise UnsupportedError(
            f"{to} takes no plan for each stage of a pipeline",
            hint=f"one of {', '.join(STAGE_TARGETS)}",
        )
    pipeline = planned.pipeline
    real = layer_range(pipeline.chain) if to == "torch" else layers_of(pipeline.chain, to)
    if len(real) < 2:  # torch takes any modules in a line
        real = range(pipeline.chain.num_stages)
    own = [
        [i for i, layer in enumerate(pipeline.stage_layers(stage)) if layer in real]
        for stage in range(pipeline.num_stages)
    ]

    def run_of(layers: Layers) -> PipelineRun:
        plans = [
            _singles(len(pipeline.stage_layers(stage)), again) for stage, again in enumerate(layers)
        ]
        return run_pipeline(pipeline, planned.order, plans)

    def rank(found: tuple[Layers, PipelineRun]) -> tuple[bool, float]:
        run = found[1]
        fits = run.peak_bytes <= budget_bytes
        return not fits, run.makespan_s if fits else float(run.peak_bytes)

    firsts = [tuple(tuple(mine[:count]) for mine in own) for count in range(max(map(len, own)) + 1)]
    alike = [(layers, run_of(layers)) for layers in firsts]
    others = [_least(alike, budget_bytes)]
    if to != "megatron":
        others += _as_planned(planned, own)
    layers, run = min([*alike, *((one, run_of(one)) for one in others)], key=rank)
    single = min(alike, key=rank)[1]
    text = _text(planned, real, layers, to, single)
    return ExportedStages(to, text, layers, run, single, planned.makespan_s, budget_bytes)


def _singles(num_layers: int, again: Collection[int]) -> StagePlan:
    """A plan in which each layer in `again` runs again right before its own backward."""
    runs = []
    for i in range(num_layers - 1, -1, -1):
        runs += [f"F{i}", f"B{i}"] if i in again else [f"B{i}"]
    return StagePlan(tuple(runs))


def _least(alike: Sequence[tuple[Layers, PipelineRun]], budget_bytes: int) -> Layers:
    """For each device the fewest first layers with which itself fits.

    What a device holds follows from the order of its actions and from its own stages, not from
    what others recompute.
    """
    pipeline = alike[0][1].pipeline
    chosen = []
    for stage in range(pipeline.num_stages):
        device = pipeline.device_of(stage)
        peaks = [run.devices[device].peak_bytes for _, run in alike]
        fitting = [count for count, peak in enumerate(peaks) if peak <= budget_bytes]
        chosen.append(alike[fitting[0] if fitting else len(alike) - 1][0][stage])
    return tuple(chosen)


def _as_planned(planned: PipelineRun, own: Sequence[Sequence[int]]) -> Iterator[Layers]:
    """Layers that the plan runs again for some micro-batches, and for all."""
    pipeline = planned.pipeline
    micros = range(pipeline.num_micro_batches)
    every: list[Sequence[set[int]]] = [
        [set(stage_plan_of(planned.plans, stage, micro).replays) for micro in micros]
        for stage in range(pipeline.num_stages)
    ]
    for combine in (set.union, set.intersection):
        yield tuple(
            tuple(sorted(combine(*sets) & set(mine))) for sets, mine in zip(every, own, strict=True)
        )


def _text(planned: PipelineRun, real: range, layers: Layers, to: str, alike: PipelineRun) -> str:
    pipeline = planned.pipeline
    stages = [pipeline.stage_layers(stage) for stage in range(pipeline.num_stages)]
    if to == "torchtitan":
        found = [stages[stage][i] - real.start for stage, again in enumerate(layers) for i in again]
        return to_torchtitan.policy(pipeline.name, sorted(found), len(real))
    numbers = [[layer for layer in stage if layer in real] for stage in stages]
    if to == "megatron":
        return stage_code.megatron(
            pipeline.name,
            [len(again) for again in layers],
            [len(stage) for stage in numbers],
            pipeline.num_devices,
            alike,
        )
    within = [
        [numbers[stage].index(stages[stage][i]) for i in again]
        for stage, again in enumerate(layers)
    ]
    return stage_code.torch(pipeline.name, within, [len(stage) for stage in numbers])
