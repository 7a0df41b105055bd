"""Compiled steps: ops fused into groups that inductor compiles once, run in the planned order."""
