"""Run any schedule of a chain of blocks over the eager blocks."""
