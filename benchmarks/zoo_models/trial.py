"""One model trained plainly, and within budgets by the ways that a user has: what differs."""

from __future__ import annotations

import random
import re
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from schedsim.validation.guards.plan_variants import (
    PlainStepWarning,
    ReplannedWarning,
    RoundingWarning,
)
from schedsim.validation.measure import AllocatorMeter, storage_bytes
from schedsim.validation.whole_step.step_capture import BlockLevelWarning
from torch import Tensor, nn

import schedsim
from schedsim.errors import InfeasibleBudgetError, SchedsimError

from .subject import Entry, Subject

NUM_STEPS = 4
"""Compared; the last is measured."""
SHARES = (0.8, 0.6, 0.45)
"""Budgets, as shares of the bytes of a step that are not resident before it."""
WAYS = ("whole step", "by blocks", "in place")
EFFORT = 0.1
_FEWEST_TRIES = 8

EQUAL = "equal to the bit"
TOLD = "equal to the bit, with a line on bytes"
ROUNDING = "equal within rounding, and said"
PLAIN = "the plain step, and said"
REFUSED = "refused"
DIFFERENT = "SILENT DIFFERENCE"
OVER = "OVER BUDGET"
CRASH = "CRASH"


@dataclass
class Trace:
    """The results of a loop: losses, gradients, parameters, buffers, generators of every step.

    Attributes
    ----------
    earlier
        Of the same loop before, in whose steps whatever comes first was captured and measured.
    """

    tensors: list[tuple[str, KeptTensor]] = field(default_factory=list)
    peak_bytes: int = 0
    earlier: Trace | None = None

    def note(self, name: str, tensor: Tensor | None) -> None:
        """Keep a copy; of a sparse tensor, copies of its places and entries."""
        found = torch.empty(0) if tensor is None else tensor.detach()
        if found.is_sparse:
            self.note(f"places of {name}", found._indices())
            found = found._values()
        self.tensors.append((name, KeptTensor.of(found)))

    def difference(self, other: Trace) -> str | None:
        """The first difference, and its size; ``None`` if all is equal to the bit."""
        if len(self.tensors) != len(other.tensors):
            return f"{len(other.tensors)} tensors instead of {len(self.tensors)}"
        for (name, kept), (_, its) in zip(self.tensors, other.tensors, strict=True):
            a, b = kept.tensor, its.tensor
            if a.shape != b.shape or a.dtype != b.dtype:
                return f"{name} is {tuple(b.shape)} of {b.dtype}, not {tuple(a.shape)} of {a.dtype}"
            if not torch.equal(a, b) and not _same_nans(a, b):
                scale = a.abs().max().double() if a.numel() else torch.ones(())
                gap = (a.cdouble() - b.cdouble()).abs().max()
                return f"{name} by {float(gap / (scale or 1.0)):.1e} of its largest entry"
        return None


class KeptTensor(NamedTuple):
    """A copy that torch's allocator knows nothing of: no memory of the loop that is measured."""

    entries: Any
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> KeptTensor:
        """A copy of `tensor`, which is dense."""
        plain = tensor.resolve_conj().resolve_neg()
        # NumPy has no bfloat16.
        whole = plain.view(torch.int16) if plain.dtype is torch.bfloat16 else plain
        return cls(whole.numpy().copy(), tensor.dtype)

    @property
    def tensor(self) -> Tensor:
        """The tensor that was kept."""
        return torch.from_numpy(self.entries).view(self.dtype)


def _same_nans(a: Tensor, b: Tensor) -> bool:
    if not (a.is_floating_point() or a.is_complex()):
        return False
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


class Loop:
    """The loop of a user, with an optimizer, from the first state of the model every time."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.roots = [m for m in (subject.model, subject.loss) if isinstance(m, nn.Module)]
        self._first = [(t, t.detach().clone()) for t in self._state()]

    def _state(self) -> Iterator[Tensor]:
        for root in self.roots:
            yield from root.parameters()
            yield from root.buffers()

    def parameters(self) -> list[nn.Parameter]:
        """Those that are trained."""
        return [p for root in self.roots for p in root.parameters() if p.requires_grad]

    def optimizer(self) -> torch.optim.Optimizer:
        """A new one."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def reset(self) -> None:
        """The first state again, in the same tensors."""
        with torch.no_grad():
            for tensor, content in self._first:
                tensor.copy_(content)
        for parameter in self.parameters():
            parameter.grad = None

    def resident_bytes(self, optimizer: torch.optim.Optimizer) -> int:
        """Bytes that are there before a step."""
        subject = self.subject
        given = [list(self._state()), subject.inputs, subject.targets, dict(subject.keywords)]
        return storage_bytes([given, dict(optimizer.state)])

    def run(
        self, step: Callable[[], Tensor], optimizer: torch.optim.Optimizer, *, measured: bool = True
    ) -> Trace:
        """`NUM_STEPS` steps; the peak of the last is measured."""
        torch.manual_seed(7)
        random.seed(7)
        np.random.seed(7)
        trace, seen = Trace(), []

        def whole() -> Tensor:
            loss = step()
            loss.backward()
            for root in self.roots:
                for name, parameter in root.named_parameters():
                    seen.append((name, parameter.grad))
            return loss.detach()

        for k in range(NUM_STEPS):
            seen.clear()
            if k < NUM_STEPS - 1 or not measured:
                loss = whole()
            else:
                resident = self.resident_bytes(optimizer)
                [reading] = AllocatorMeter().read(whole)
                trace.peak_bytes = resident + reading.peak_bytes
                loss = reading.result
            trace.note(f"loss {k}", loss)
            for name, gradient in seen:
                trace.note(f"gradient {k} of {name}", gradient)
            seen.clear()
            optimizer.step()
            optimizer.zero_grad()
            for root in self.roots:
                for name, buffer in root.named_buffers():
                    trace.note(f"buffer {k} {name}", buffer)
            trace.note(f"generator {k}", torch.get_rng_state())
            drawn = [random.random(), np.random.rand()]
            trace.note(f"generators of Python and NumPy {k}", torch.tensor(drawn))
        for tensor in self._state():
            trace.note("state", tensor)
        return trace

    def run_twice(self, step: Callable[[], Tensor]) -> Trace:
        """The loop, and once more from its first state, when nothing is new: that one is measured.

        What is captured and measured within steps uses the profiler that the meter is.
        """
        earlier = self.run(step, self.optimizer(), measured=False)
        self.reset()
        trace = self.run(step, self.optimizer())
        trace.earlier = earlier
        return trace


def plain_loop(entry: Entry) -> Trace:
    """The loop of the plain model, without schedsim."""
    subject = entry.make()
    loop = Loop(subject)
    return loop.run(lambda: _plain_step(subject), loop.optimizer())


def _plain_step(subject: Subject) -> Tensor:
    return subject.loss_of(subject.model(*subject.inputs, **subject.keywords))


def rows(entry: Entry, way: str, shares: tuple[float, ...] = SHARES) -> Iterator[dict[str, Any]]:
    """A row for each budget; what is captured and measured for the first serves the others."""
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        expected = plain_loop(entry)
        resident = _trained_bytes(entry)
    attempt = Attempt(entry, way)
    for share in shares:
        budget = resident + int(share * (expected.peak_bytes - resident))
        row = {"model": entry.name, "family": entry.family, "source": entry.source, "way": way}
        row |= {"budget": f"{share:.0%}", "plain_peak_bytes": expected.peak_bytes}
        started = time.process_time()
        found = _tried(attempt, budget, expected)
        yield {**row, **found, "seconds": round(time.process_time() - started, 2)}
        if found["result"] in (REFUSED, CRASH):
            return  # the same at every budget


def _trained_bytes(entry: Entry) -> int:
    """Bytes that are there before a step, with AdamW's state; the model is gone behind this.

    In place, a line would tell of its parameters, which are there when another one gets a budget.
    """
    loop = Loop(entry.make())
    return loop.resident_bytes(loop.optimizer()) + 2 * storage_bytes(loop.parameters())


def _tried(attempt: Attempt, budget: int, expected: Trace) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            trace, found = attempt.within(budget)
        except SchedsimError as error:
            line = error.message + (f" ({error.hint})" if error.hint else "")
            return {"result": REFUSED, "says": _short(line)}
        except Exception as error:  # whatever it is, it is what a user would see
            traceback.print_exc()
            return {"result": CRASH, "says": _short(f"{type(error).__name__}: {error}")}
    said = [str(w.message) for w in caught if issubclass(w.category, SAID)]
    kinds = {w.category for w in caught}
    difference = trace.earlier and expected.difference(trace.earlier)
    difference = difference or expected.difference(trace)
    found |= {"peak_bytes": trace.peak_bytes, "says": _short("; ".join(dict.fromkeys(said)))}
    if difference is not None:
        small = RoundingWarning in kinds
        return {**found, "result": ROUNDING if small else DIFFERENT, "differs": difference}
    lines = [str(w.message) for w in caught if issubclass(w.category, PlainStepWarning)]
    told = [line for line in lines if not any(part in line for part in NOT_MEASURED)]
    if any(part in line for line in told for part in AS_IT_IS):
        return {**found, "result": PLAIN}
    if trace.peak_bytes > found["budget_bytes"]:
        return {**found, "result": OVER}
    return {**found, "result": TOLD if told else EQUAL}


NOT_MEASURED = ("the first step runs as it is", "a comparison with the plain step takes")
"""Of lines that tell of nothing that is measured here."""
AS_IT_IS = ("as it is", "as they are", "no step is within the budget")
"""Of lines that tell of plain steps; others tell of bytes in steps that are not measured here."""
SAID = (PlainStepWarning, ReplannedWarning, RoundingWarning, BlockLevelWarning)


def _short(text: str) -> str:
    text = re.sub(r"/\S*/(?=[\w.-]+/[\w.-]+\.py)", "", " ".join(text.split()))
    return text if len(text) <= 400 else text[:397] + "..."


class Attempt:
    """Loops of one model by one way."""

    def __init__(self, entry: Entry, way: str) -> None:
        self.entry, self.way = entry, way
        self._loop: Loop | None = None
        self._module: Any = None

    def within(self, budget: int) -> tuple[Trace, dict[str, Any]]:
        """A loop within `budget`, or within the least that the refusal names."""
        for _ in range(_FEWEST_TRIES):
            try:
                if self.way == "in place":
                    return self._in_place(budget)
                return self._whole_step(budget)
            except InfeasibleBudgetError as error:
                least = error.plan.min_feasible_bytes
                if least is None or least <= budget:
                    raise
                budget = least
        raise SchedsimError("no budget that a refusal named was enough", hint="this is a fault")

    def _in_place(self, budget: int) -> tuple[Trace, dict[str, Any]]:
        torch._dynamo.reset()
        subject = self.entry.make()
        loop = Loop(subject)
        given = dict(subject.keywords) or subject.inputs
        extra = storage_bytes([subject.targets])
        if isinstance(subject.loss, nn.Module):  # is not seen, and is resident with its state
            extra += 4 * storage_bytes([*subject.loss.parameters()])
        model = schedsim.rematerialize(
            subject.model, given, budget, in_place=True, extra_bytes=extra, **COMMON
        )
        trace = loop.run_twice(lambda: _plain_step(subject))
        return trace, {"budget_bytes": budget, "level": "graphs", "parts": _parts(model)}

    def _whole_step(self, budget: int) -> tuple[Trace, dict[str, Any]]:
        if self._loop is None:
            self._loop = Loop(self.entry.make())
        loop, subject = self._loop, self._loop.subject
        loop.reset()
        given = dict(subject.keywords) or (*subject.inputs, *subject.targets)
        if self._module is None:
            level = "auto" if self.way == "whole step" else "block"
            self._module = schedsim.rematerialize(
                subject.model, given, budget, subject.loss, level=level, **COMMON
            )
        else:
            self._module.replan(budget)
        module = self._module

        def step() -> Tensor:
            found = module(**given) if isinstance(given, dict) else module(*given)
            return found if isinstance(found, Tensor) else found.loss

        trace = loop.run_twice(step)
        plan = module.plan
        repeats = len(plan.schedule) - len(module.run_counts)
        return trace, {"budget_bytes": budget, "level": module.level, "repeats": repeats}


COMMON: dict[str, Any] = {"optimizer": "adamw", "effort": EFFORT}


def _parts(model: nn.Module) -> int:
    from schedsim.validation.drop_in.in_place import session_in

    return len(session_in(model).parts)
