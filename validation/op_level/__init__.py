"""Run any schedule of a captured graph as the forward and backward of a module."""
