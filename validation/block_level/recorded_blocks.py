"""The requests of a step's blocks to CUDA's allocator, recorded in one step that replays them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.dataflow.recorded_step import SAVING, RecordedStep
from schedsim.simulation.schedule import Schedule

from ..measure.cuda import allocator_settings
from ..measure.cuda_requests import RequestEvent, RequestRecord, recording_requests
from ..measure.resident_layout import resident_layout
from .block_program import BlockRun, make_program
from .parts import StepInputs
from .runtime import BlockStep, StepLayout
from .sizes import static_tensors, tensors_in


def record_blocks(
    workload: Chain | Graph,
    layout: StepLayout,
    step: StepInputs,
    model: nn.Module,
    device: torch.device,
    *,
    keeps_gradients: bool = False,
) -> RecordedStep:
    """Run a step on `device` that replays every block but the last, and record its requests.

    The requests of a forward are recorded with and without its bundle. Parameters must have no
    gradients; those that the step makes are among what is recorded, and the caller removes them
    again. With `keeps_gradients`, a second step is recorded, which adds to them.

    Notes
    -----
    Takes one step or two, and the memory of a step that keeps the inputs of blocks.
    """
    resident = resident_layout(_resident(model, layout.loss, step), device)
    found = _recorded(workload, layout, step, device, resident)
    if not keeps_gradients:
        return found
    return _kept_from(found, _recorded(workload, layout, step, device, resident))


def _kept_from(first: RecordedStep, later: RecordedStep) -> RecordedStep:
    """`later` after a first step of its own."""
    base = len(later.block_bytes)
    return replace(
        later,
        block_bytes=(*later.block_bytes, *first.block_bytes),
        holders=(*later.holders, *first.holders),
        first_records={
            key: tuple(b + base if b >= 0 else b - base for b in record)
            for key, record in first.records.items()
        },
    )


def _recorded(
    workload: Chain | Graph,
    layout: StepLayout,
    step: StepInputs,
    device: torch.device,
    resident: tuple[tuple[int, ...], ...],
) -> RecordedStep:
    schedule = _replaying(len(layout.parts))
    program = make_program(workload, schedule, len(layout.parts))
    with recording_requests(device) as record:
        watch = _Marks(record, isinstance(workload, Chain), len(layout.parts))
        running = BlockStep(layout, program, step, watch)
        loss = running.forward()
        running.backward(torch.ones_like(loss))
        record.mark("")
        del loss, running
        events = record.events()
    return _assembled(events, watch, resident)


def _replaying(num_parts: int) -> Schedule:
    forward = [f"F{i}" for i in range(num_parts)]
    names = [*forward, "loss", f"B{num_parts - 1}"]
    for i in range(num_parts - 2, -1, -1):
        names += [f"F{i}", f"B{i}"]
    return Schedule.from_names(names)


def _resident(model: nn.Module, loss: Any, step: StepInputs) -> list[Any]:
    given = tensors_in((step.arguments, dict(step.keywords), step.extra, step.side))
    return [*static_tensors(model, loss), *given]


@dataclass
class _Marks:
    """Marks the runs of a step, and notes where their values and gradients are stored.

    Attributes
    ----------
    holders
        For each run, the address of each storage that it made for a value or a gradient -> tensor.
    """

    record: RequestRecord
    line: bool
    num_parts: int
    holders: dict[str, dict[int, str]] = field(default_factory=dict)
    bundles: dict[str, str] = field(default_factory=dict)

    def begin(self, number: int, run: BlockRun, step: BlockStep) -> None:
        """Attribute the requests from now on to this run."""
        self.record.mark(_key(run))

    def end(self, number: int, run: BlockRun, step: BlockStep) -> None:
        """Note what the run left, and attribute later frees by the rule of the simulator."""
        key = _key(run)
        found: dict[int, str] = {}
        if run.kind == "F":
            for address in _addresses(step.values[run.index + 1]):
                found[address] = f"a{run.index + 1}"
            if run.saves:
                self.bundles[key] = f"r{run.index + 1}"
        else:
            for (value, consumer), row in step.gradients.items():
                for address in _addresses(row):
                    found[address] = self._gradient(value, consumer)
        self.holders[key] = found
        self.record.mark(f"after {key}")

    def _gradient(self, value: int, consumer: int) -> str:
        if self.line:
            return f"d{value}"
        return f"d{value}.{'loss' if consumer == self.num_parts else consumer}"


def _key(run: BlockRun) -> str:
    return run.name + (SAVING if run.kind == "F" and run.saves else "")


def _addresses(tree: Any) -> list[int]:
    return [t.untyped_storage().data_ptr() for t in tensors_in(tree)]


def _assembled(
    events: Sequence[RequestEvent], watch: _Marks, resident: tuple[tuple[int, ...], ...]
) -> RecordedStep:
    sizes: list[int] = []
    made_in: list[str] = []
    at: dict[int, int] = {}  # address -> block that is there
    left: dict[str, dict[int, int]] = {}  # key -> address -> block, at the end of the run
    records: dict[str, list[int]] = {key: [] for key in watch.holders}
    late: list[tuple[str, int]] = []
    running = ""
    for event in events:
        after = event.mark.startswith("after ")
        key = event.mark.removeprefix("after ")
        if running and (after or key != running):
            left[running] = dict(at)
            running = ""
        if key not in records:
            continue
        if not after:
            running = key
        if event.asks:
            at[event.address] = len(sizes)
            sizes.append(event.size_bytes)
            made_in.append(key)
            records[key].append(at[event.address])
        elif event.address in at:
            block = at.pop(event.address)
            if after:
                late.append((key, block))
            else:
                records[key].append(~block)
    holders = [""] * len(sizes)
    for key, places in watch.holders.items():
        for address, block in left.get(key, at).items():
            if made_in[block] == key and address in places:
                holders[block] = places[address]
    for block, key in enumerate(made_in):
        if not holders[block] and key in watch.bundles and ~block not in records[key]:
            holders[block] = watch.bundles[key]
    # A block that was freed only after the end of its run, and that belongs to no tensor, counts as
    # freed at that end.
    for key, block in late:
        if not holders[block]:
            records[key].append(~block)
    return RecordedStep(
        resident,
        tuple(sizes),
        tuple(holders),
        _with_plain(records, holders),
        allocator_options=allocator_settings(),
    )


def _with_plain(
    records: Mapping[str, list[int]], holders: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    """The records; for the last forward, which ran once, also one without its bundle."""
    found = {key: tuple(record) for key, record in records.items()}
    for key, record in records.items():
        name = key.removesuffix(SAVING)
        if name != key and name not in found:
            kept = [b for b in record if b >= 0 and holders[b].startswith("r")]
            gone = {~b for b in record if b < 0}
            found[name] = (*record, *(~b for b in kept if b not in gone))
    return found
