"""The backend with compile=True: parts of a step as fused groups."""

from __future__ import annotations

import shutil

import pytest

torch = pytest.importorskip("torch")

from fused_steps import assert_close, dropped, left_by  # noqa: E402
from schedsim.validation.compiled.group import FusedGroup  # noqa: E402
from schedsim.validation.drop_in import backend  # noqa: E402
from schedsim.validation.drop_in.backend import SESSIONS  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler"
)


@pytest.mark.slow
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
    session = next(s for o, s in SESSIONS.rows.values() if o == options)
    [part] = session.parts
    assert any(isinstance(call.target, FusedGroup) for call in part.program.calls)
    # Seeds are drawn once: no state of a generator is kept for a repeat.
    assert part.states_bytes < torch.get_rng_state().numel()
    [reading] = AllocatorMeter().read(lambda: step(*inputs).backward())
    resident = storage_bytes([list(model.parameters()), inputs])
    assert resident + reading.peak_bytes <= session.budget_bytes


def trained_by_draws(w):
    """A size that is drawn, in a graph without gradients, and numbers behind it."""
    size = int(torch.randint(2, 5, ()).item())
    return (w.tanh() * torch.rand(size, 1)).sum()


@pytest.mark.slow
@needs_compiler
def test_graphs_that_no_backward_follows_draw_the_numbers_of_inductor():
    """In a step, and in an evaluation without gradients."""
    w = torch.nn.Parameter(torch.randn(8))

    def drawn(**how):
        torch._dynamo.reset()
        step = torch.compile(trained_by_draws, dynamic=False, **how)
        torch.manual_seed(3)
        with torch.no_grad():
            evaluated = step(w)
        loss = step(w)
        loss.backward()
        [found] = torch.autograd.grad(step(w), [w])
        return evaluated, loss.detach(), found, torch.get_rng_state()

    expected = drawn()
    made = drawn(backend="schedsim", options={"budget": 10**6, "compile": True, "effort": 0.1})
    assert all(map(torch.allclose, made[:3], expected[:3]))
    assert torch.equal(made[3], expected[3])
