"""What a captured step took from Python, watched: a change means another plan, never a stale one."""
