"""The cost of each op of a captured graph: measured here, or by the roofline of another device."""

from .calibration import Calibration, fit_calibration
from .counted import counted_costs
from .measured import measured_costs
from .own_device import device_costs
from .roofline import roofline_costs
from .table import Costs

__all__ = [
    "Calibration",
    "Costs",
    "counted_costs",
    "device_costs",
    "fit_calibration",
    "measured_costs",
    "roofline_costs",
]
