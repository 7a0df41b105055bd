"""Compiled steps: groups of fused ops, each compiled once by inductor, run in the planned order."""
