"""The simulation of a pipeline: time of the step, and memory, work and waits of each device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..simulation.simulator import Simulation, simulate
from ..units import format_bytes, format_seconds
from .lower import pool_name, stream_name
from .orders import Order
from .pipeline import Pipeline
from .sequence import StagePlans, pipeline_schedule


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One device over the step.

    Attributes
    ----------
    peak_bytes, static_bytes
        The most bytes in the memory of the device; the bytes among them that are always resident.
    busy_s
        Time in which the device computes, recomputation included.
    recompute_s
        Time of forwards that are not the first of their op.
    bubble
        Share of the step in which the device computes nothing.
    """

    device: int
    num_layers: int
    peak_bytes: int
    static_bytes: int
    busy_s: float
    recompute_s: float
    bubble: float


@dataclass(frozen=True)
class PipelineRun:
    """The simulated cost of an order with stage plans.

    Attributes
    ----------
    simulation : Simulation
        Simulation of the op runs on the pipeline's graph.
    """

    pipeline: Pipeline
    order: Order
    plans: StagePlans
    simulation: Simulation

    @property
    def makespan_s(self) -> float:
        """Time of the step, in seconds."""
        return self.simulation.makespan_s

    @property
    def peak_bytes(self) -> int:
        """The largest of the devices' peaks."""
        return max(use.peak_bytes for use in self.devices)

    @property
    def overhead(self) -> float:
        """Time relative to `Pipeline.ideal_s`, less 1."""
        ideal = self.pipeline.ideal_s
        return self.makespan_s / ideal - 1.0 if ideal else 0.0

    @property
    def bubble(self) -> float:
        """Share of all devices' time in which they compute nothing."""
        return sum(use.bubble for use in self.devices) / len(self.devices)

    @cached_property
    def devices(self) -> tuple[DeviceUse, ...]:
        """Each device over the step."""
        pipeline, simulation = self.pipeline, self.simulation
        graph = pipeline.graph
        runs = simulation.schedule.bind(graph)
        again = np.ones(runs.size, dtype=bool)
        again[np.unique(runs, return_index=True)[1]] = False
        width = graph.num_ops // pipeline.num_micro_batches
        stream = np.array([op.stream for op in graph.ops[:width]])[runs % width]
        found = []
        for k in range(pipeline.num_devices):
            mine = stream == stream_name(k)
            busy_s = float(np.sum(simulation.run_s[mine]))
            stages = range(k, pipeline.num_stages, pipeline.num_devices)
            found.append(
                DeviceUse(
                    device=k,
                    num_layers=sum(len(pipeline.stage_layers(v)) for v in stages),
                    peak_bytes=simulation.peak_by_pool[pool_name(k)],
                    static_bytes=pipeline.device_static_bytes[k],
                    busy_s=busy_s,
                    recompute_s=float(np.sum(simulation.run_s[mine & again])),
                    bubble=max(0.0, 1.0 - busy_s / self.makespan_s) if self.makespan_s else 0.0,
                )
            )
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Numbers of the step and of each device, for JSON."""
        return {
            "makespan_s": self.makespan_s,
            "ideal_s": self.pipeline.ideal_s,
            "overhead": self.overhead,
            "bubble": self.bubble,
            "peak_bytes": self.peak_bytes,
            "num_runs": self.simulation.num_runs,
            "devices": [
                {name: getattr(use, name) for name in DeviceUse.__slots__} for use in self.devices
            ],
        }

    def __str__(self) -> str:
        head = (
            f"{self.pipeline.name}: {self.pipeline.num_micro_batches} micro-batches over "
            f"{self.pipeline.num_devices} devices"
        )
        lines = [
            head,
            f"  step time  {format_seconds(self.makespan_s)}, bubble {self.bubble:.1%}",
            f"  peak       {format_bytes(self.peak_bytes)}",
        ]
        return "\n".join(lines)


def run_pipeline(pipeline: Pipeline, order: Order, plans: StagePlans) -> PipelineRun:
    """Simulate `order` and `plans` on the pipeline's graph.

    Raises
    ------
    InvalidScheduleError
        The order or a plan cannot run.

    Examples
    --------
    >>> from schedsim.pipelines import keep_all, make_order, make_pipeline
    >>> from schedsim.workloads.synthetic import uniform
    >>> run = run_pipeline(make_pipeline(uniform(8), 4, 8), make_order("1f1b", 4, 8),
    ...                    [keep_all(2)] * 4)
    >>> round(run.makespan_s, 9), round(run.bubble, 4)  # (4 - 1) / (8 + 4 - 1)
    (0.066, 0.2727)
    """
    schedule = pipeline_schedule(pipeline, order, plans)
    return PipelineRun(pipeline, order, plans, simulate(pipeline.graph, schedule))
