"""Planners of graphs, one file for each paper or idea."""
