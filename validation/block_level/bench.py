"""Measurement of single blocks: their ops, run as in a step, and the bytes that they take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..measure import Meter, storage_bytes
from ..ranks import ALONE, Ranks
from ..torch_private.pytrees import tree_flatten, tree_map_only
from ..torch_private.storage_refs import share_of, spread_as
from .block_program import BlockProgram
from .bundles import detached
from .gradients_made import MadeGradients
from .parts import StepInputs
from .runtime import BlockStep, StepLayout
from .sizes import Sizes
from .step_copies import check_movable
from .transfers import Mover

READINGS_OF_RANKS = 8
"""Fewest readings of a part that communicates: a thread of gloo may hold a buffer for too long."""

MOST_READINGS_OF_RANKS = 20
"""Most readings: after so many, the least of each count is taken, even if it was read only once."""


PAUSE_S = 0.002
"""A pause after each run that communicates, in which threads free what they have finished with."""


@dataclass(frozen=True)
class Counts:
    """The byte counts of one reading of a part, beyond the bytes alive before the part ran.

    For the loss, which is one op, only `saving_peak_bytes` and `backward_peak_bytes` are set.
    """

    forward_peak_bytes: int
    saving_peak_bytes: int
    kept_bytes: int
    backward_peak_bytes: int

    @classmethod
    def least(cls, readings: Sequence[Counts]) -> Counts:
        """The least of each count: memory that is held for too long only ever adds to a count.

        It may add to one count and not to the next. Differences must therefore be taken between the
        least counts: the least of the differences would be too small.
        """
        return cls(*(min(column) for column in zip(*map(astuple, readings), strict=True)))

    @classmethod
    def are_sure(cls, readings: Sequence[Counts]) -> bool:
        """Whether the least of each count was read at least twice."""
        columns = zip(*map(astuple, readings), strict=True)
        return all(column.count(min(column)) >= 2 for column in columns)


@dataclass
class Measured:
    """The measured bytes of one part, and a list of measured times for each kind of run.

    `made_bytes`: bytes of the parameter gradients that the part's backward is the first to make.
    `replayed_s`: a forward that keeps its bundle, together with the backward right after it.
    """

    saved_bytes: int = 0
    forward_workspace_bytes: int = 0
    saving_workspace_bytes: int = 0
    backward_workspace_bytes: int = 0
    made_bytes: int = 0
    forward_s: list[float] = field(default_factory=list)
    saving_s: list[float] = field(default_factory=list)
    replayed_s: list[float] = field(default_factory=list)
    backward_s: list[float] = field(default_factory=list)

    def rounds(self) -> list[tuple[float, float, float]]:
        """For each round: a forward alone, a replay with its backward, and both of store-all."""
        stored = [saving + backward for saving, backward in self.kept()]
        return list(zip(self.forward_s, self.replayed_s, stored, strict=True))

    def kept(self) -> list[tuple[float, float]]:
        """For each round of store-all: the forward that keeps its bundle, and the backward."""
        return list(zip(self.saving_s, self.backward_s, strict=True))


class Bench:
    """Runs the ops of single parts, as a step does, and measures them.

    Attributes
    ----------
    releases_output
        Whether a step drops the model's output after the forward of the loss, as measured.
    """

    def __init__(
        self,
        layout: StepLayout,
        step: StepInputs,
        sizes: Sizes,
        meter: Meter,
        device: torch.device,
        ranks: Ranks = ALONE,
        made: MadeGradients | None = None,
    ) -> None:
        self.made = MadeGradients(()) if made is None else made
        self.layout, self.inputs, self.sizes = layout, step, sizes
        self.meter, self.device = meter, device
        self.ranks = ranks
        self.releases_output = False
        shared = {id(p): p for group in layout.shared for p in group}
        self.resident = frozenset(i for i, p in shared.items() if p.grad is not None)
        self.summed_bytes: dict[int, int] = {}
        self.rows: list[Measured] = []

    def measure_bytes(self, values: list[Any]) -> list[Measured]:
        """A row for each part, the loss last; `timing.measure_times` adds the times later."""
        rows = self.rows = [Measured() for _ in range(len(self.layout.parts) + 1)]
        counts = []
        for i in range(len(rows) - 1, -1, -1):  # in the order in which gradients are made
            self._once(i, values)  # warm-up: libraries choose kernels, caches fill
            counts.append(self._least_counts(i, values))
            rows[i].made_bytes = self.made.settle()
        for i, row in enumerate(rows):
            self._set_bytes(i, values, counts[-1 - i], row)
        return rows

    def check_movable(self, i: int, values: list[Any], expected_bytes: int) -> None:
        """Refuse part i if copies to the host would not find all that the part keeps."""
        step = self._step(values, has_copies=True)
        step.values.pop(i + 1, None)
        part = self.layout.parts[i]
        out = step._saving(part, i)
        check_movable(step, i, expected_bytes, part.name)
        del out

    def _step(self, values: list[Any], *, has_copies: bool = False) -> BlockStep:
        mover = Mover(self.device) if has_copies else None
        step = BlockStep(self.layout, BlockProgram((), 0, has_copies), self.inputs, None, mover)
        step.resident = self.resident
        step.values = dict(enumerate(values))
        del step.values[0]
        return step

    def _ops(self, i: int, values: list[Any]) -> tuple[Any, Any, Any, Any]:
        """(forward, saving forward, give a gradient, backward) of part i, to call in this order."""
        step = self._step(values)
        num = len(self.layout.parts)
        if i == num:
            scalar = torch.ones((), device=self.device)
            spread: Any = None

            def loss_forward() -> Any:
                nonlocal spread
                loss = step._loss_forward()
                spread = None if share_of(loss) is loss else spread_as(loss)
                return loss

            def loss_backward() -> Any:
                step._loss_backward(scalar if spread is None else spread(scalar))
                return step.gradients

            return None, loss_forward, None, loss_backward
        part = self.layout.parts[i]
        step.values.pop(i + 1, None)  # it is made anew

        def free_gathered() -> None:
            if self.layout.sharding is not None:
                self.layout.sharding.free_gathered(i)
                self.layout.sharding.begin_backward()

        def forward() -> Any:
            with torch.no_grad():
                read = [step.values.get(value) for value in part.reads]
                out = tree_map_only(Tensor, Tensor.detach, part.call(self.inputs, *read))
            free_gathered()
            return out

        def saving() -> Any:
            out = step._saving(part, i)
            step.values[i + 1] = tree_map_only(Tensor, Tensor.detach, out)
            free_gathered()

        consumers = [c for c, other in enumerate(self.layout.parts) if i + 1 in other.reads]
        summed = self._summed(i)
        before: list[Tensor | None] = []

        def give() -> Any:
            # The meter does not see the end of what is older than its reading: gradients that the
            # backward adds to are made anew.
            for parameter, gradient in summed:
                before.append(gradient)
                parameter.grad = gradient.clone()
            needs = self.layout.needs_gradient[i + 1]
            leaves = tree_flatten(step.values[i + 1])[0]
            for consumer in consumers or [num]:
                step.gradients[i + 1, consumer] = [
                    torch.ones_like(leaf) if wanted else None
                    for leaf, wanted in zip(leaves, needs, strict=True)
                ]

        def backward() -> Any:
            del step.values[i + 1]  # as a step drops it
            step._backward(i)
            before.clear()
            return step.gradients

        return forward, saving, give, backward

    def _summed(self, i: int) -> list[tuple[Any, Tensor]]:
        """Parameters of part `i` with the gradients of later parts that its backward adds to."""
        shared = self.layout.shared[i] if self.layout.shared else ()
        there = [(p, p.grad) for p in shared if id(p) not in self.resident]
        return [(p, gradient) for p, gradient in there if gradient is not None]

    def _can_release_output(self, values: list[Any]) -> bool:
        """Whether nothing keeps the model's output beyond the forward of the loss."""
        step, num = self._step(values), len(self.layout.parts)
        step.layout = replace(self.layout, releases_output=True)
        del step.values[num]
        step.values[num] = detached(step._saving(self.layout.parts[-1], num - 1))
        step._loss_forward()
        return num not in step.values

    def _once(self, i: int, values: list[Any]) -> None:
        for run in self._ops(i, values):
            if run is not None:
                run()

    def _least_counts(self, i: int, values: list[Any]) -> Counts:
        """The least counts of part `i`; ranks that communicate all take equally many readings."""
        readings = [self._counts(i, values)]
        if self.ranks.alone:
            return readings[0]
        while len(readings) < MOST_READINGS_OF_RANKS:
            enough = len(readings) >= READINGS_OF_RANKS
            if enough and self.ranks.all(Counts.are_sure(readings), "compare readings"):
                break
            readings.append(self._counts(i, values))
        return Counts.least(readings)

    def _counts(self, i: int, values: list[Any]) -> Counts:
        self.made.forget()
        forward, saving, give, backward = map(self._paused, self._ops(i, values))
        if forward is not None:
            self.summed_bytes[i] = storage_bytes([gradient for _, gradient in self._summed(i)])
        if forward is None:  # the loss
            first, second = self.meter.read(saving, backward)
            return Counts(0, first.peak_bytes, 0, second.peak_bytes)
        [alone] = self.meter.read(forward)
        forward_peak_bytes = alone.peak_bytes
        del alone  # with its result
        kept, _, pulled = self.meter.read(saving, give, backward)
        return Counts(forward_peak_bytes, kept.peak_bytes, kept.end_bytes, pulled.peak_bytes)

    def _paused(self, run: Any) -> Any:
        if run is None or self.ranks.alone:
            return run

        def run_and_pause() -> Any:
            found = run()
            time.sleep(PAUSE_S)
            return found

        return run_and_pause

    def _set_bytes(self, i: int, values: list[Any], counts: Counts, row: Measured) -> None:
        sizes = self.sizes.value_bytes
        saving, backward = counts.saving_peak_bytes, counts.backward_peak_bytes
        if i == len(self.layout.parts):  # the loss is one op, which writes the gradient
            # A workspace may be negative, but no op takes memory away.
            held = max(saving, backward) - sizes[i]
            freed = max(0, saving, backward - sizes[i]) - sizes[i]
            # The memory rule still charges the output to the last part's backward. The peak must
            # not lie there, because it would then be smaller than predicted.
            last = self.layout.parts[-1]
            behind = sum(sizes[value] for value in last.reads if value)
            behind += self.rows[-2].backward_workspace_bytes + self.rows[-2].made_bytes
            # Where one rank looks, all do: it runs the last block, which may gather.
            if self.ranks.all(freed < behind, "compare readings"):
                self.releases_output = False
            else:
                self.releases_output = self._can_release_output(values) and freed >= behind
            row.forward_workspace_bytes = freed if self.releases_output else held
            return
        out = sizes[i + 1]
        row.forward_workspace_bytes = max(0, counts.forward_peak_bytes - out)
        row.saved_bytes = max(out, counts.kept_bytes)
        row.saving_workspace_bytes = max(0, saving - row.saved_bytes)
        consumers = max(1, sum(i + 1 in part.reads for part in self.layout.parts))
        written = sum(sizes[value] for value in self.layout.parts[i].reads if value)
        charged = row.saved_bytes + consumers * out + written + row.made_bytes
        charged += self.summed_bytes[i]
        # Negative where the bundle is freed while gradients are made.
        row.backward_workspace_bytes = max(backward - charged, -written - row.made_bytes)
