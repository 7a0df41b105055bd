"""Compiled code: what records of arrays kernels take, and how and when they are compiled.

`schedsim.kernels.record` is free of numba, so that workloads can be records; only modules that hold
kernels import `schedsim.kernels.compiled`.
"""

on_command_line = False
"""Set by the command line: a library does not write to its caller's terminal."""
