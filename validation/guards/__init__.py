"""What a step reads from Python, watched: a change leads to another plan, not to a stale one."""
