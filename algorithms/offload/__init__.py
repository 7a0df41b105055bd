"""Planners that keep, recompute or offload."""
