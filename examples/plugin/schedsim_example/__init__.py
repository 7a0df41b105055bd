"""What this package adds to schedsim: see `pyproject.toml` for the names."""
