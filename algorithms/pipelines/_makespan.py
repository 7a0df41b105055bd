"""The step time of a pipeline from times of whole stages: one pass over its actions, compiled.

The result is what the simulator finds on the graph of single ops, where no collective takes time,
because the layers of a stage run one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schedsim.errors import InvalidScheduleError
from schedsim.kernels.compiled import kernel
from schedsim.kernels.record import Ints, Reals, RealTable, Record, Table
from schedsim.pipelines import Order, Pipeline

FORWARD, BACKWARD, WEIGHTS = range(3)


@dataclass(frozen=True, eq=False)
class StageWork(Record):
    """The seconds that each stage works for one micro-batch.

    Attributes
    ----------
    forward_s, weights_s : (num_stages,)
    early_s, late_s : (num_stages, most_plans)
        Seconds of its backward before and after its gradient is there, for each plan.
    num_plans : (num_stages,)
        Number of plans of the stage, which its micro-batches take in turn.
    """

    forward_s: Reals
    weights_s: Reals
    early_s: RealTable
    late_s: RealTable
    num_plans: Ints


class StageTimes:
    """The actions of an order, sorted so that the inputs of each action come before it.

    Parameters
    ----------
    pipeline
        The pipeline; its cuts and layers play no part here.

    Raises
    ------
    InvalidScheduleError
        Two devices wait for each other.
    """

    def __init__(self, pipeline: Pipeline, order: Order) -> None:
        self.pipeline = pipeline
        last = pipeline.num_stages - 1
        place = [0] * len(order)
        made: dict[tuple[str, int, int], int] = {}
        rows: list[tuple[int, ...]] = []
        links: dict[tuple[int, int], int] = {}
        going = True
        while going:
            going = False
            for k, actions in enumerate(order):
                while place[k] < len(actions):
                    kind, v, j = actions[place[k]]
                    needs, cut = None, 0
                    if kind == "F" and v > 0:
                        needs, cut = ("F", v - 1, j), v
                    elif kind == "B" and v < last:
                        needs, cut = ("B", v + 1, j), v + 1
                    if needs is not None and needs not in made:
                        break
                    other = k if needs is None else pipeline.device_of(needs[1])
                    link = -1
                    if other != k:
                        link = links.setdefault((other, k), len(links))
                    made[kind, v, j] = len(rows)
                    code = "FBW".index(kind)
                    source = -1 if needs is None else made[needs]
                    rows.append((code, k, v, j, source, link, cut))
                    place[k] += 1
                    going = True
        if len(rows) < sum(len(actions) for actions in order):
            k = next(k for k, actions in enumerate(order) if place[k] < len(actions))
            raise InvalidScheduleError(
                f"order: device {k} waits for ever before {order[k][place[k]]}",
                rule="order",
                run_index=None,
                op_name=str(order[k][place[k]]),
                hint="its input comes from an action that waits for this one",
            )
        self._rows = np.array(rows, dtype=np.int64)
        self._num_links = max(len(links), 1)

    def message_times(self, pipeline: Pipeline) -> NDArray[np.float64]:
        """Seconds of the message that each action waits for, with the cuts of `pipeline`."""
        sizes = pipeline.chain.activation_bytes().tolist()
        cuts = np.array([pipeline.message_s(sizes[i]) for i in pipeline.cuts])
        return np.where(self._rows[:, 5] >= 0, cuts[self._rows[:, 6]], 0.0)

    def makespan_s(
        self,
        forward_s: Sequence[float],
        early_s: Sequence[Sequence[float]],
        late_s: Sequence[Sequence[float]],
        weights_s: Sequence[float],
        message_s: NDArray[np.float64],
    ) -> float:
        """Seconds of the step.

        Parameters
        ----------
        forward_s, weights_s
            Seconds of each stage for one micro-batch.
        early_s, late_s
            Seconds of each stage's backward before and after its gradient is there: one number, or
            one for each of its plans, which micro-batches take in turn.
        message_s
            As `message_times` gives them.
        """
        num = self.pipeline.num_stages
        num_plans = np.array([len(row) for row in late_s], dtype=np.int64)
        shape = (num, int(num_plans.max()))
        work = StageWork(
            np.ascontiguousarray(forward_s, dtype=np.float64),
            np.ascontiguousarray(weights_s, dtype=np.float64),
            np.zeros(shape),
            np.zeros(shape),
            num_plans,
        )
        for v in range(num):
            work.early_s[v, : num_plans[v]] = early_s[v]
            work.late_s[v, : num_plans[v]] = late_s[v]
        num_devices, waits = self.pipeline.num_devices, self.pipeline.waits_for_gradient
        return float(_makespan(self._rows, message_s, self._num_links, num_devices, work, waits))


@kernel
def _makespan(
    rows: Table, message_s: Reals, num_links: int, num_devices: int, work: StageWork, waits: bool
) -> float:
    """One pass over the actions: each starts when its device is free and its message has come."""
    forward_s, weights_s, num_plans = work.forward_s, work.weights_s, work.num_plans
    early_s, late_s = work.early_s, work.late_s
    free = np.zeros(num_devices)
    link_free = np.zeros(num_links)
    end = np.zeros(rows.shape[0])
    makespan = 0.0
    for a in range(rows.shape[0]):
        kind, k, v, j, source, link = (
            rows[a, 0],
            rows[a, 1],
            rows[a, 2],
            rows[a, 3],
            rows[a, 4],
            rows[a, 5],
        )
        arrives = 0.0
        if source >= 0:
            arrives = end[source]
            if link >= 0:
                arrives = max(arrives, link_free[link]) + message_s[a]
                link_free[link] = arrives
        if kind == 0:
            end[a] = max(free[k], arrives) + forward_s[v]
        elif kind == 1:
            slot = j % num_plans[v]
            if waits:
                end[a] = max(free[k], arrives) + early_s[v, slot] + late_s[v, slot]
            else:
                end[a] = max(free[k] + early_s[v, slot], arrives) + late_s[v, slot]
        else:
            end[a] = free[k] + weights_s[v]
        free[k] = end[a]
        makespan = max(makespan, end[a])
    return makespan


def weight_times(pipeline: Pipeline) -> NDArray[np.float64]:
    """Seconds of each stage's weight gradients for one micro-batch; zero where not split."""
    found = np.zeros(pipeline.num_stages)
    if pipeline.split_backward:
        for v in range(pipeline.num_stages):
            for i in pipeline.stage_layers(v):
                if pipeline.weight_gradients:
                    found[v] += pipeline.weight_gradients[i].time_s
                else:
                    found[v] += pipeline.chain.stages[i].backward_s / 2
    return found
