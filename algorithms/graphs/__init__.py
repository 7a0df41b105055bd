"""Planners of graphs, a paper or an idea a file."""
