"""Measurement of a step: bytes, seconds, floating-point operations."""

from __future__ import annotations

from .allocator import allocator_record
from .cuda import CudaPeak, cuda_peak, library_workspace_bytes
from .flops import count_flops
from .meters import METERS, AllocatorMeter, CudaMeter, Meter, Reading, StorageMeter, get_meter
from .storage import StorageTracker, storage_bytes
from .timing import Timing, pinned_threads, ratio, time_interleaved

__all__ = [
    "METERS",
    "AllocatorMeter",
    "CudaMeter",
    "CudaPeak",
    "Meter",
    "Reading",
    "StorageMeter",
    "StorageTracker",
    "Timing",
    "allocator_record",
    "count_flops",
    "cuda_peak",
    "get_meter",
    "library_workspace_bytes",
    "pinned_threads",
    "ratio",
    "storage_bytes",
    "time_interleaved",
]
