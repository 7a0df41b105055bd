"""The costs of a step on the device that its model lies on."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..dry_cuda import LABEL, dry_device_name, get_dry_device, has_times
from .measured import Measurable, measured_costs
from .roofline import roofline_costs
from .table import Costs


def device_costs(
    captured: Measurable, device: str | torch.device, *, use_cache: bool = True
) -> Costs:
    """Times and workspaces of the ops of `captured`, measured on `device`.

    A dry device has no times: events there show the time of the host between two launches, by which
    a product costs what an activation does. There, workspaces are measured, and times are those of
    the data sheet of the device that is not here.
    """
    if has_times(torch.device(device)):
        return measured_costs(captured, device, use_cache=use_cache)
    measured = measured_costs(captured, device, use_cache=False, target_s=0.0)
    times = roofline_costs(captured, get_dry_device(dry_device_name() or "").roofline)
    return replace(measured, time_s=times.time_s, source=f"{times.source}; {LABEL}")
