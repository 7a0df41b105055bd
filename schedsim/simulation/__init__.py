"""Schedules, and what they cost: the simulator, the engine of several streams, traces."""
