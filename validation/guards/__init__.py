"""What a step takes from Python, watched: a change means another plan, no stale one."""
