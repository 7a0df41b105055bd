"""Times of ops on a device that is not here: the larger of arithmetic and memory time."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

from schedsim.workloads.devices import get_device

from ..capture.to_graph import op_calls
from .calibration import Calibration, load_calibration
from .library_workspaces import workspace_bytes, workspace_of
from .signature import signature
from .table import Costs
from .work import work_of

if TYPE_CHECKING:
    from .measured import Measurable


def roofline_costs(
    captured: Measurable,
    device_name: str,
    calibration: Calibration | str | PathLike[str] | None = None,
) -> Costs:
    """Times of the ops of `captured` on the device called `device_name`, from its data sheet.

    Parameters
    ----------
    captured
        The graph whose ops give flops and bytes. Workspaces are those of the matrix library, one
        product at a time, on a CUDA device; otherwise there are none.
    device_name
        A name of ``schedsim.workloads.devices``.
    calibration
        A calibration or its file: the share of each peak that is reached, and the launch time.

    Returns
    -------
    Costs

    Raises
    ------
    SchedsimError
        The device is unknown, or the file is no calibration.

    References
    ----------
    Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
    """
    device = get_device(device_name)
    if calibration is not None and not isinstance(calibration, Calibration):
        calibration = load_calibration(calibration)
    reached = calibration or Calibration()
    program = captured.program
    times: dict[str, float] = {}
    workspaces: dict[str, int] = {}
    known: dict[str, float] = {}
    for i in op_calls(program):
        call = program.calls[i]
        if i == program.seed:
            times[call.name] = 0.0
            continue
        key = signature(program, call)
        if key not in known:
            work = work_of(program, call)
            known[key] = reached.time_s(work, device)
        times[call.name] = known[key]
        workspaces[call.name] = workspace_of(program, call, device_name)
    how = f"calibrated by {calibration.source}" if calibration else "at the device's peaks"
    return Costs(
        times,
        workspaces,
        f"roofline of {device_name} ({device.source}), {how}",
        notes=(_workspace_note(device_name),),
    )


def _workspace_note(device_name: str) -> str:
    if not workspace_bytes(device_name):
        return "workspaces are not known for a device that is not here"
    return (
        f"workspaces: cuBLAS's, {workspace_bytes(device_name)} bytes a product (PyTorch 2.15); "
        "those of convolutions are not known for a device that is not here"
    )
