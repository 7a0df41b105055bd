"""A budget as people write it: bytes, a text, a share of store-all, or a device."""

from __future__ import annotations

from typing import Any

import torch

from schedsim.errors import SchedsimError
from schedsim.units import parse_bytes

from ..measure import storage_bytes

HEADROOM = 0.06
"""Share of a device's free memory that is left for the allocator's rounding and fragments."""


def budget_in_bytes(budget: int | str, store_all_bytes: int, resident: Any) -> int:
    """The number of bytes that `budget` stands for.

    Parameters
    ----------
    budget
        Bytes, ``"24GiB"``, ``"80%"`` of `store_all_bytes`, or ``"cuda:0"`` for what is free on that
        device, less `HEADROOM`.
    resident
        Tensors that the workload counts; those already on the device are added to what is free.

    Raises
    ------
    SchedsimError
        The text is none of these, or there is no such device.

    Examples
    --------
    >>> budget_in_bytes("80%", 1000, []), budget_in_bytes("2kB", 1000, [])
    (800, 2000)
    """
    if isinstance(budget, bool) or not isinstance(budget, int | str):
        raise _unclear(budget)
    if isinstance(budget, int):
        if budget <= 0:
            raise _unclear(budget)
        return budget
    text = budget.strip()
    if text.endswith("%"):
        try:
            share = float(text[:-1])
        except ValueError:
            raise _unclear(budget) from None
        if not 0 < share <= 1000:
            raise _unclear(budget)
        return int(store_all_bytes * share / 100)
    if text.partition(":")[0] == "cuda":
        return _free_on(text, resident)
    return parse_bytes(text)


def _unclear(budget: object) -> SchedsimError:
    return SchedsimError(
        f"budget {budget!r} is not understood",
        hint="give bytes, a text like '24GiB', '80%' of the store-all peak, or 'cuda:0'",
    )


def _free_on(name: str, resident: Any) -> int:
    if not torch.cuda.is_available():
        raise SchedsimError(
            f"budget {name!r}: there is no CUDA device here",
            hint="give bytes or a text like '24GiB', or a share like '80%'",
        )
    try:
        device = torch.device(name)
        free, _ = torch.cuda.mem_get_info(device)
    except (RuntimeError, AssertionError) as error:
        line = str(error).partition("\n")[0]
        raise SchedsimError(f"budget {name!r}: {line}", hint="cuda:0 is the first") from error
    index = torch.cuda.current_device() if device.index is None else device.index
    here = [t for t in resident if t.device.type == "cuda" and t.device.index == index]
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int((free + cached) * (1 - HEADROOM)) + storage_bytes(here)
