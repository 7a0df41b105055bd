"""Watches what a step reads from Python: a change leads to another plan, not to a stale one."""
