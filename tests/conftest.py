"""Settings that all tests share."""

from __future__ import annotations

from hypothesis import settings

# The same examples every time, and no deadline: the first call of a kernel compiles it.
settings.register_profile("schedsim", derandomize=True, deadline=None)
settings.load_profile("schedsim")
