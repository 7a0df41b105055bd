"""PyTorch's CUDA build, with its own caching allocator, on a machine without a GPU.

A preloaded library, built here from C against the headers of the installed wheels, answers the
calls to the CUDA runtime. Device memory is address space that nobody touches, and kernels are not
run. Everything above them (allocator, snapshots, streams, autograd, FSDP, Inductor) is PyTorch's
own code. So PyTorch says the same about memory as on the real device. It says nothing about times.

``python -m schedsim.validation.dry_cuda --device a100-80gb -- python train.py``
"""

from __future__ import annotations

from .dry_devices import DEVICES, DryDevice, get_dry_device
from .label import LABEL, PREFIX, dry_device_name, has_times, has_values, is_dry

__all__ = [
    "DEVICES",
    "LABEL",
    "PREFIX",
    "DryDevice",
    "dry_device_name",
    "get_dry_device",
    "has_times",
    "has_values",
    "is_dry",
]
