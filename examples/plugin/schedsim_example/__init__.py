"""This package adds a planner, an export, a workload and a device; `pyproject.toml` names them."""
