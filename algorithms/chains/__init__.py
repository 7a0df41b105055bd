"""Planners of chains, one file for each paper or idea."""
