"""The requests of the optimizer's step to CUDA's allocator, recorded on a twin of the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from schedsim.dataflow.recorded_step import RecordedStep

from .block_level.sizes import tensors_in
from .measure.cuda_requests import RequestEvent, recording_requests
from .measure.resident_layout import resident_layout

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
    Takes memory for parameters, gradients and state once more. Where that is missing, the line says
    so.
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
    try:
        first, later = _steps(optimizer, model, place[0])
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return recorded, "the optimizer's step is not counted: no memory for a twin of it"
    except Exception as error:  # an optimizer's own code may raise anything
        why = " ".join(f"{type(error).__name__}: {error}".split())[:150]
        return recorded, f"the optimizer's step is not counted: {why}"
    sizes = list(recorded.block_bytes)
    later_end = _numbered(later, sizes, keeps=False)
    first_end = later_end if held else _numbered(first, sizes, keeps=True)
    found = replace(
        recorded,
        block_bytes=tuple(sizes),
        holders=(*recorded.holders, *[""] * (len(sizes) - len(recorded.block_bytes))),
        first_end=first_end,
        later_end=later_end,
    )
    return found, "what is reserved is of two steps, the optimizer's included"


def _steps(
    optimizer: Any, model: nn.Module, device: torch.device
) -> tuple[list[RequestEvent], list[RequestEvent]]:
    twin = _twin(optimizer, model)
    rows = [p for group in twin.param_groups for p in group["params"]]
    with recording_requests(device) as record:
        for mark in ("first", "later"):
            record.mark("")
            for row in rows:
                row.grad = torch.empty_like(row) if row.requires_grad else None
            record.mark(mark)
            twin.step()
            record.mark("")
            for row in rows:
                row.grad = None
        events = record.events()
    del rows, twin
    torch.cuda.empty_cache()
    first, later = ([e for e in events if e.mark == mark] for mark in ("first", "later"))
    return first, later


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
