"""The requests of each op of a step to CUDA's allocator, recorded op by op."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from schedsim.dataflow.recorded_step import BARE, RecordedStep
from schedsim.units import format_bytes

from ..block_level.gradients_made import given_gradients
from ..block_level.sizes import static_tensors, tensors_in
from ..capture.captured import CapturedGraph
from ..capture.program import COPIES_OF_STORAGES, Call, Program, map_refs
from ..capture.to_graph import op_calls, tensor_names
from ..costs.measured import made_up_tensors
from ..costs.signature import signature
from ..measure.cuda import allocator_settings, library_workspace_bytes
from ..measure.cuda_requests import RequestEvent, recording_requests
from ..measure.resident_layout import blocks_in_use, resident_layout
from ..torch_private.profiler_records import forget_library_workspaces

AFTER = "after"


@dataclass(frozen=True)
class OpRequests:
    """The requests of one op: blocks by number, and which block is which output.

    Attributes
    ----------
    record
        ``i`` requests block i, ``~i`` gives it back.
    block_bytes
        Bytes requested for each block.
    outputs
        Block -> position of an output of the op that is stored in it.
    """

    record: tuple[int, ...]
    block_bytes: tuple[int, ...]
    outputs: dict[int, int]


def with_requests(
    captured: CapturedGraph, inputs: Any, *, keeps_gradients: bool = False
) -> CapturedGraph:
    """`captured` with what its ops ask of the allocator, where its model lies on a CUDA device.

    A plan's budget then bounds what is reserved. A compiled group is recorded as one op. The runs
    of such a step are not joined: what a joined run asks for is known only after the plan. With
    `keeps_gradients`, the gradients that the first step makes stay, and later steps add to them.
    """
    device = next(captured.model.parameters()).device
    if device.type != "cuda" or not captured.runnable:
        return captured
    with given_gradients(captured.model, captured.loss, resident=False):
        forget_library_workspaces()
        before = blocks_in_use(device)
        library = library_workspace_bytes(device)
        own = blocks_in_use(device) - before if library else frozenset[int]()
        recorded = record_ops(captured, inputs, device, own)
    if library:
        note = f"resident: {format_bytes(library)} are workspaces that the matrix libraries keep"
        captured = replace(captured.with_state(library), notes=(*captured.notes, note))
    if keeps_gradients:
        recorded = _with_first_step(captured.program, recorded)
    return replace(captured, graph=replace(captured.graph, recorded=recorded), join=None)


def record_ops(
    captured: CapturedGraph, inputs: Any, device: torch.device, others: Collection[int] = ()
) -> RecordedStep:
    """Run each distinct op of `captured` by itself on `device`, and record its requests.

    Parameters
    ----------
    inputs
        Inputs of the step, which the caller holds.
    others
        Addresses of other blocks that are resident.

    Notes
    -----
    Takes the time of two runs of each distinct op, and the memory of one op at a time.
    """
    program = captured.program
    resident = resident_layout(_resident(captured, inputs), device, others)
    calls = {key: (call, lean) for key, call, lean in _distinct(program)}
    found: dict[str, OpRequests] = {}
    addresses: dict[str, list[int]] = {}
    with torch.no_grad(), torch.random.fork_rng([device]), recording_requests(device) as record:
        for number, (key, (call, lean)) in enumerate(calls.items()):
            addresses[key] = _run_marked(program, call, lean, device, record, str(number))
        events = record.events()
    by_mark: dict[str, list[RequestEvent]] = {}
    for event in events:
        by_mark.setdefault(event.mark, []).append(event)
    for number, key in enumerate(calls):
        found[key] = requests_of_op(by_mark.get(str(number), []), addresses[key])
    return _assembled(captured, found, resident)


def _with_first_step(program: Program, recorded: RecordedStep) -> RecordedStep:
    """`recorded` after a first step whose gradients of parameters are released by nothing."""
    names = tensor_names(program)
    kept = {names.get(program.values[value].storage) for value in program.gradients.values()}
    sizes, holders = list(recorded.block_bytes), list(recorded.holders)
    twins: dict[int, int] = {}
    blocks: dict[str, list[int]] = {}
    for block, holder in enumerate(recorded.holders):
        if holder and holder in kept:
            twins[block] = len(sizes)
            blocks.setdefault(holder, []).append(len(sizes))
            sizes.append(recorded.block_bytes[block])
            holders.append("")
    first = {
        name: tuple(twins.get(b, b) if b >= 0 else ~twins.get(~b, ~b) for b in record)
        for name, record in recorded.records.items()
    }
    return replace(
        recorded,
        block_bytes=tuple(sizes),
        holders=tuple(holders),
        first_records=first,
        first_blocks={name: tuple(found) for name, found in blocks.items()},
    )


def _resident(captured: CapturedGraph, inputs: Any) -> list[Any]:
    tensors = static_tensors(captured.model, captured.loss)
    loss = captured.loss if isinstance(captured.loss, nn.Module) else None
    own = [] if loss is None else [*loss.parameters(), *loss.buffers()]
    constants = list(captured.program.constants.values())
    return [*tensors, *own, *constants, *tensors_in(inputs)]


def _distinct(program: Program) -> list[tuple[str, Call, bool]]:
    found: dict[str, tuple[Call, bool]] = {}
    for i in op_calls(program):
        call = program.calls[i]
        if i == program.seed:
            continue
        key = signature(program, call)
        found.setdefault(key, (call, False))
        if call.lean is not None:
            found.setdefault(key + BARE, (call, True))
    return [(key, call, lean) for key, (call, lean) in found.items()]


def _run_marked(
    program: Program, call: Call, lean: bool, device: torch.device, record: Any, mark: str
) -> list[int]:
    """Run `call` twice, the second time marked; returns the storage address of each output."""
    target, args = call.lean if lean and call.lean is not None else (call.target, call.args)
    function = getattr(target, "probe", target)  # a function that checks is called unchecked
    make = made_up_tensors(program, call, device)
    record.mark("")
    given, words = map_refs(args, make), map_refs(call.kwargs, make)
    function(*given, **words)  # memory that a library keeps from its first use on is no op's own
    record.mark(mark)
    outputs = function(*given, **words)
    record.mark(AFTER)
    several = outputs if isinstance(outputs, tuple | list) else (outputs,)
    return [
        t.untyped_storage().data_ptr() if isinstance(t, Tensor) and t.device.type == "cuda" else 0
        for t in several
    ]


def requests_of_op(events: Sequence[RequestEvent], addresses: Sequence[int]) -> OpRequests:
    """The requests of one run of an op whose outputs lie at `addresses` at its end.

    Examples
    --------
    >>> ask, free = RequestEvent("", True, 512, 100), RequestEvent("", False, 512, 100)
    >>> requests_of_op([ask, free, ask], [512])
    OpRequests(record=(0, -1, 1), block_bytes=(100, 100), outputs={1: 0})
    """
    record: list[int] = []
    sizes: list[int] = []
    at: dict[int, int] = {}
    for event in events:
        if event.asks:
            at[event.address] = len(sizes)
            record.append(len(sizes))
            sizes.append(event.size_bytes)
        elif event.address in at:
            record.append(~at.pop(event.address))
    outputs: dict[int, int] = {}
    for position, address in enumerate(addresses):
        if address in at:
            outputs.setdefault(at[address], position)
    # Memory that the op leaves and that is no output is a library's own, requested only once.
    record += [~block for block in at.values() if block not in outputs]
    return OpRequests(tuple(record), tuple(sizes), outputs)


def _assembled(
    captured: CapturedGraph,
    found: dict[str, OpRequests],
    resident: tuple[tuple[int, ...], ...],
) -> RecordedStep:
    program, names = captured.program, tensor_names(captured.program)
    sizes: list[int] = []
    holders: list[str] = []
    records: dict[str, tuple[int, ...]] = {}
    written = {op.name: op.writes for op in captured.graph.ops}

    def add(name: str, call: Call, requests: OpRequests) -> None:
        base = len(sizes)
        for block, size in enumerate(requests.block_bytes):
            position = requests.outputs.get(block, -1)
            value = call.outputs[position] if 0 <= position < len(call.outputs) else -1
            holder = names.get(program.values[value].storage, "") if value >= 0 else ""
            if holder and call.target in COPIES_OF_STORAGES:
                size = written[call.name].get(holder, size)  # the whole storage of the argument
            sizes.append(size)
            holders.append(holder)
        gone = {~b for b in requests.record if b < 0}
        unheld = [b for b in requests.outputs if not holders[base + b] and b not in gone]
        record = (*requests.record, *(~b for b in unheld))
        records[name] = tuple(b + base if b >= 0 else ~(~b + base) for b in record)

    for i in op_calls(program):
        call = program.calls[i]
        if i == program.seed:
            made = {k: size for k, size in written[call.name].items() if size}
            base = len(sizes)
            sizes += made.values()
            holders += made
            records[call.name] = tuple(range(base, len(sizes)))
            continue
        key = signature(program, call)
        add(call.name, call, found[key])
        if call.lean is not None:
            add(call.name + BARE, call, found[key + BARE])
    return RecordedStep(
        resident, tuple(sizes), tuple(holders), records, allocator_options=allocator_settings()
    )
