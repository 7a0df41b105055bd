"""The requests of the optimizer's step to CUDA's allocator, recorded on a twin of the optimizer.

Where the device has no memory for the twin, its tensors have sizes and no memory, and a request is
a storage that an op of the step returns.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from schedsim.dataflow.recorded_step import RecordedStep

from .block_level.sizes import tensors_in
from .measure.cuda_requests import RequestEvent, recording_requests
from .measure.resident_layout import resident_layout
from .torch_private.fake_tensors import fake_mode
from .torch_private.op_modes import TorchDispatchMode
from .torch_private.pytrees import tree_leaves
from .torch_private.storage_refs import storage_key

_BY_NAME: dict[str, Any] = {
    "sgd": lambda rows: torch.optim.SGD(rows, lr=0.1),
    "sgd-momentum": lambda rows: torch.optim.SGD(rows, lr=0.1, momentum=0.9),
    "adam": lambda rows: torch.optim.Adam(rows, lr=0.1),
    "adamw": lambda rows: torch.optim.AdamW(rows, lr=0.1),
}


def with_optimizer(
    recorded: RecordedStep, optimizer: Any, model: nn.Module, resident: Sequence[Any]
) -> tuple[RecordedStep, str]:
    """`recorded` with the requests of the optimizer's step at its end, and a line about them.

    A twin of the optimizer, of the same class and settings, takes two steps on tensors of the forms
    of the parameters; the first makes the state. Parameters and state of the real optimizer are not
    touched. For an optimizer that already has state, only later steps are recorded, and its state
    counts as resident.

    Parameters
    ----------
    optimizer
        A torch optimizer, one of ``"sgd"``, ``"sgd-momentum"``, ``"adam"``, ``"adamw"`` with
        PyTorch's own settings, or anything else, which leaves `recorded` as it is.
    resident
        Tensors that exist before a step, nested.

    Returns
    -------
    The line is empty where there is no optimizer to record.

    Notes
    -----
    Takes memory for parameters, gradients and state once more. Where that is missing, the twin's
    tensors have none: what its kernels hold inside of an op is then not seen, and an optimizer that
    asks for a tensor's value is not counted, as the line says.
    """
    state = getattr(optimizer, "state", None)
    held = tensors_in(dict(state)) if state else []
    place = [p.device for p in model.parameters() if p.device.type == "cuda"]
    if not place or (
        not isinstance(optimizer, torch.optim.Optimizer) and optimizer not in _BY_NAME
    ):
        return recorded, ""
    if held:
        recorded = replace(recorded, resident_segments=resident_layout([*resident, held], place[0]))
    line = "what is reserved is of two steps, the optimizer's included"
    try:
        found = _steps(optimizer, model, place[0])
        if found is None:  # outside of the `except` that held what was allocated
            torch.cuda.empty_cache()
            found = steps_on_fakes(optimizer, model)
            line += ", whose twin has no memory: workspaces inside of its kernels are not seen"
        first, later = found
    except Exception as error:  # an optimizer's own code may raise anything
        why = " ".join(f"{type(error).__name__}: {error}".split())[:150]
        return recorded, f"the optimizer's step is not counted: {why}"
    sizes = list(recorded.block_bytes)
    later_end = _numbered(later, sizes, keeps=False)
    first_end = later_end if held else _numbered(first, sizes, keeps=True)
    ended = replace(
        recorded,
        block_bytes=tuple(sizes),
        holders=(*recorded.holders, *[""] * (len(sizes) - len(recorded.block_bytes))),
        first_end=first_end,
        later_end=later_end,
    )
    return ended, line


Steps = tuple[list[RequestEvent], list[RequestEvent]]
"""Requests of an optimizer's first step, which makes its state, and of a later one."""


def _steps(optimizer: Any, model: nn.Module, device: torch.device) -> Steps | None:
    """On tensors with memory; ``None`` if there is too little."""
    try:
        with recording_requests(device) as record:
            _step_twice(_twin(optimizer, model), record)
            events = record.events()
    except torch.OutOfMemoryError:
        return None
    torch.cuda.empty_cache()
    return _split(events)


def steps_on_fakes(optimizer: Any, model: nn.Module) -> Steps:
    """The requests of two steps of a twin whose tensors have sizes and no memory. O(ops)."""
    with fake_mode():
        twin = _twin(optimizer, model)
        for group in twin.param_groups:
            # what PyTorch chooses for plain parameters, which fakes do not pass for
            if group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = not group.get("differentiable", False)
        record = FakeRequests()
        _step_twice(twin, record)
    return _split(record.events)


def _step_twice(twin: Any, record: Any) -> None:
    rows = [p for group in twin.param_groups for p in group["params"]]
    for mark in ("first", "later"):
        record.mark("")
        for row in rows:
            row.grad = torch.empty_like(row) if row.requires_grad else None
        record.mark(mark)
        if isinstance(record, FakeRequests):
            with record:
                twin.step()
        else:
            twin.step()
        record.mark("")
        for row in rows:
            row.grad = None


def _split(events: Sequence[RequestEvent]) -> Steps:
    first, later = ([e for e in events if e.mark == mark] for mark in ("first", "later"))
    return first, later


class FakeRequests(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's modes are untyped
    """Storages on a CUDA device that ops make while this is entered, as requests to its allocator.

    Attributes
    ----------
    events
        Requests and releases; an address is a number of its own for each storage.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[RequestEvent] = []
        self._mark = ""
        self._num_storages = 0
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def mark(self, name: str) -> None:
        """Begin a piece called `name`."""
        self._mark = name

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the op; what it returns and did not read is a request."""
        for leaf in tree_leaves((args, kwargs)):
            self._meet(leaf, asks=False)
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            self._meet(leaf, asks=True)
        return out

    def _meet(self, tensor: Any, *, asks: bool) -> None:
        if not isinstance(tensor, Tensor) or tensor.device.type != "cuda":
            return
        key = storage_key(tensor)
        if key in self._known:
            return
        storage = tensor.untyped_storage()
        size, address = storage.nbytes(), self._num_storages
        self._num_storages += 1
        asks = asks and size > 0

        def gone(_: Any) -> None:
            del self._known[key]
            if asks:
                self.events.append(RequestEvent(self._mark, False, address, size))

        self._known[key] = weakref.ref(storage, gone)
        if asks:
            self.events.append(RequestEvent(self._mark, True, address, size))


def _twin(optimizer: Any, model: nn.Module) -> Any:
    if isinstance(optimizer, str):
        return _BY_NAME[optimizer]([_like(p) for p in model.parameters() if p.requires_grad])
    groups = [
        {**group, "params": [_like(p) for p in group["params"]]} for group in optimizer.param_groups
    ]
    return type(optimizer)(groups)


def _like(parameter: Tensor) -> nn.Parameter:
    return nn.Parameter(torch.empty_like(parameter.detach()), requires_grad=parameter.requires_grad)


def _numbered(events: Sequence[RequestEvent], sizes: list[int], *, keeps: bool) -> tuple[int, ...]:
    """`events` with blocks numbered after those of `sizes`, which grows; the rest is given back."""
    record: list[int] = []
    at: dict[int, int] = {}
    for event in events:
        if event.asks:
            at[event.address] = len(sizes)
            record.append(len(sizes))
            sizes.append(event.size_bytes)
        elif event.address in at:
            record.append(~at.pop(event.address))
    if not keeps:
        record += [~block for block in at.values()]
    return tuple(record)
