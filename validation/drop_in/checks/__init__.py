"""Comparison of steps with the plain step, and of schedules with each other."""
