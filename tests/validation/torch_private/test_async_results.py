"""Results of messages, with and without the wrapper that waits for them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.torch_private.async_results import arrived  # noqa: E402
from schedsim.validation.torch_private.storage_refs import storage_key  # noqa: E402


def test_the_content_of_a_wrapper_is_found_by_its_storage():
    """The wrapper itself has another one; what is no wrapper stays."""
    functional = pytest.importorskip("torch.distributed._functional_collectives")
    content = torch.randn(3)
    wrapped = functional.AsyncCollectiveTensor(content)
    wrapped.completed = True  # there is no group to wait for
    assert storage_key(wrapped) != storage_key(content)
    assert arrived(wrapped) is content
    assert arrived(content) is content
    parameter = torch.nn.Parameter(content)
    assert arrived(parameter) is parameter
