"""Planners of chains, a paper or an idea a file."""
