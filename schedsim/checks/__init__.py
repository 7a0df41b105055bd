"""Checks of values and arguments, which fail with one clear line."""
