"""How long AOTAutograd holds the gradients that the caller gives to a compiled backward."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.torch_private.given_gradients import are_held  # noqa: E402
from schedsim.validation.torch_private.storage_refs import is_gone, weakly  # noqa: E402


def test_what_is_said_is_so():
    """Seen from within a backward that lets go of all that it is given."""
    from functorch.compile import aot_function

    seen = []

    def forward(module, examples):
        return module

    def backward(module, examples):
        def run(arguments):
            given = arguments[-1]
            reference = weakly(given)
            found = module(*arguments)
            del given
            arguments.clear()
            seen.append(not is_gone(reference))
            return found

        run._boxed_call = True
        return run

    x = torch.randn(8, requires_grad=True)
    out = aot_function(lambda x: x.sin(), fw_compiler=forward, bw_compiler=backward)(x)
    out.square().sum().backward()
    assert seen == [are_held()]
