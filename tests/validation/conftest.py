"""Settings of the tests on real models."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """Measured times go to a folder of their own, not to the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCHEDSIM_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
