"""Which schedule each call of a step runs by, within one budget."""
