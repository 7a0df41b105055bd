"""Compiled code: what records of arrays kernels take, and how and when they are compiled.

`schedsim.kernels.record` is free of numba, so that workloads can be records; only modules that hold
kernels import `schedsim.kernels.compiled`.
"""
