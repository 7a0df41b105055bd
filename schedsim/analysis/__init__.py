"""Explanations: why the peak of a schedule is where it is, and what one change would buy."""
