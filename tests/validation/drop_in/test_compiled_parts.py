"""The backend with compile=True: parts of a step as fused groups."""

from __future__ import annotations

import shutil

import pytest

torch = pytest.importorskip("torch")

from fused_steps import assert_close, dropped, left_by  # noqa: E402
from schedsim.validation.compiled.group import FusedGroup  # noqa: E402
from schedsim.validation.drop_in import backend  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler"
)


@needs_compiler
def test_numbers_are_those_of_inductor_and_the_peak_is_within_the_budget():
    """Dropout at the model's output too, whose numbers the caller holds."""
    model, inputs, loss = dropped()
    torch._dynamo.reset()
    compiled = torch.compile(model)
    expected = left_by(lambda x, t: loss(compiled(x), t), model, inputs)
    torch._dynamo.reset()
    # What the loop holds besides is not seen by the backend.
    target_bytes = inputs[1].untyped_storage().nbytes()
    options = {"budget": "85%", "compile": True, "extra_bytes": target_bytes}
    module = torch.compile(model, backend=backend.schedsim, options=options)

    def step(x, target):
        return loss(module(x), target)

    assert_close(left_by(step, model, inputs), expected)
    assert_close(left_by(step, model, inputs), expected)
    session = next(s for o, s in backend._sessions.values() if o == options)
    [part] = session.parts
    assert any(isinstance(call.target, FusedGroup) for call in part.program.calls)
    # Seeds are drawn once: no state of a generator is kept for a repeat.
    assert part.states_bytes < torch.get_rng_state().numel()
    [reading] = AllocatorMeter().read(lambda: step(*inputs).backward())
    resident = storage_bytes([list(model.parameters()), inputs])
    assert resident + reading.peak_bytes <= session.budget_bytes
